#pragma once

#include <algorithm>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "model/resolve.hpp"

/// Models an exchange message by message. As soon as two ranks have begun the exchange, their
/// messages are in transit. The links of both ranks limit the rate of a message, and the messages
/// on a link share the link with max-min fairness.
namespace message_replay {

struct Message {
  size_t from, to;  // indices of members
  double left;      // bytes that remain
  size_t link[2];   // link of the sender, link of the receiver
  double begin;
  double rate = 0;
};

/// Sets the rates of the messages in transit. Repeatedly finds the link with the smallest capacity
/// per message, and assigns this rate to all messages on the link.
inline void share(std::vector<Message*>& active, const std::vector<double>& capacity) {
  std::vector<double> left = capacity;
  std::vector<size_t> users(capacity.size(), 0);
  for (const Message* m : active)
    for (const size_t link : m->link) ++users[link];
  std::vector<Message*> open = active;
  while (!open.empty()) {
    size_t tightest = open.front()->link[0];
    for (const Message* m : open)
      for (const size_t link : m->link)
        if (left[link] / static_cast<double>(users[link]) <
            left[tightest] / static_cast<double>(users[tightest]))
          tightest = link;
    const double rate = left[tightest] / static_cast<double>(users[tightest]);
    std::erase_if(open, [&](Message* m) {
      if (m->link[0] != tightest && m->link[1] != tightest) return false;
      m->rate = rate;
      for (const size_t link : m->link) {
        left[link] -= rate;
        --users[link];
      }
      return true;
    });
  }
}

inline void run(const muonrt::MachineProfile& profile,
                std::span<const muonrt::ExchangeMember> members, std::span<double> ended) {
  std::map<int32_t, size_t> at;
  for (size_t k = 0; k < members.size(); ++k) at[members[k].rank] = k;
  const auto node = [&](size_t k) {
    return members[k].rank / static_cast<int32_t>(profile.node_ranks);
  };
  // Links of member k: 4 k + {node out, node in, network out, network in}.
  std::vector<double> capacity;
  for (size_t k = 0; k < members.size(); ++k)
    for (const double rate :
         {profile.node_bytes, profile.node_bytes, profile.network_bytes, profile.network_bytes})
      capacity.push_back(rate);
  std::vector<Message> messages;
  std::vector<double> ready(members.size());
  for (size_t k = 0; k < members.size(); ++k) {
    // On the host, a rank sets up its messages one after the other.
    const auto others = [&](const std::vector<muonrt::PeerBytes>& list) {
      return std::count_if(list.begin(), list.end(),
                           [&](const muonrt::PeerBytes& m) { return m.peer != members[k].rank; });
    };
    const auto count =
        std::max(others(members[k].exchange->sends), others(members[k].exchange->receives));
    ready[k] = members[k].begin + (count > 0 ? profile.exchange_seconds : profile.pass_seconds) +
               profile.message_seconds * static_cast<double>(count);
    // On the host, a rank first copies its message to itself.
    for (const auto& [peer, bytes] : members[k].exchange->sends)
      if (peer == members[k].rank && !profile.gpu)
        ready[k] += 2 * static_cast<double>(bytes) / profile.pass_bytes;
    ended[k] = std::max(ended[k], ready[k]);
  }
  for (size_t k = 0; k < members.size(); ++k) {
    for (const auto& [peer, bytes] : members[k].exchange->sends) {
      const size_t to = at.at(peer);
      if (to == k) {
        const double own = profile.gpu ? 2 * static_cast<double>(bytes) / profile.pass_bytes : 0;
        ended[k] = std::max(ended[k], ready[k] + own);
        continue;
      }
      const size_t tier = node(k) == node(to) ? 0 : 2;
      messages.push_back({k,
                          to,
                          static_cast<double>(bytes),
                          {4 * k + tier, 4 * to + tier + 1},
                          std::max(ready[k], ready[to])});
    }
  }
  double now = 0;
  for (size_t open = messages.size(); open > 0;) {
    std::vector<Message*> active;
    double next = 1e300;
    for (Message& m : messages) {
      if (m.left <= 0) continue;
      if (m.begin <= now) active.push_back(&m);
      if (m.begin > now) next = std::min(next, m.begin);
    }
    share(active, capacity);
    for (const Message* m : active) next = std::min(next, now + m->left / m->rate);
    for (Message* m : active) {
      m->left -= (next - now) * m->rate;
      if (m->left > 1e-6) continue;
      m->left = 0;
      --open;
      for (const size_t k : {m->from, m->to}) ended[k] = std::max(ended[k], next);
    }
    now = next;
  }
}

inline muonrt::ExchangeModel model(const muonrt::MachineProfile& profile) {
  return [&profile](std::span<const muonrt::ExchangeMember> members, std::span<double> ended) {
    run(profile, members, ended);
  };
}

}  // namespace message_replay
