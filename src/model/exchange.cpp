#include "model/exchange.hpp"

#include <algorithm>
#include <bit>
#include <map>

#include "base/error.hpp"

namespace muonrt {

namespace {

/// The messages of a rank over one link in one direction. They share the link's rate equally.
class LinkLoad {
 public:
  void add(int64_t bytes) { sizes_.push_back(static_cast<double>(bytes)); }
  void finish() {
    std::sort(sizes_.begin(), sizes_.end());
    double sum = 0;
    for (const double size : sizes_) sums_.push_back(sum += size);
  }
  /// Returns the number of bytes that the link has moved when a message of this size is complete.
  /// By then, the link has moved the same number of bytes of every larger message, and all bytes of
  /// every smaller one.
  double bytes_until(double size) const {
    const auto larger = std::upper_bound(sizes_.begin(), sizes_.end(), size);
    const auto smaller = static_cast<size_t>(larger - sizes_.begin());
    return (smaller > 0 ? sums_[smaller - 1] : 0) +
           size * static_cast<double>(sizes_.size() - smaller);
  }
  double bytes() const { return sums_.empty() ? 0 : sums_.back(); }

 private:
  std::vector<double> sizes_, sums_;
};

int64_t bytes_to(const std::vector<PeerBytes>& messages, int32_t rank) {
  int64_t out = 0;
  for (const PeerBytes& m : messages) out += m.peer == rank ? m.bytes : 0;
  return out;
}

/// A rank in an exchange: when its messages can begin, and how they share its links.
struct RankLoad {
  double ready = 0, copied = 0;  // `copied`: the message to itself is complete
  LinkLoad out[2], in[2];        // links inside the node, and between nodes
};

double rate_of(const MachineProfile& profile, size_t link) {
  return link == 0 ? profile.node_bytes : profile.network_bytes;
}

RankLoad load_of(const MachineProfile& profile, const ExchangeMember& m) {
  RankLoad out;
  const auto add = [&](const std::vector<PeerBytes>& messages, LinkLoad* links) {
    int64_t others = 0;
    for (const auto& [peer, bytes] : messages) {
      if (peer == m.rank) continue;
      ++others;
      links[link_of(profile, m.rank, peer)].add(bytes);
    }
    for (size_t link : {0, 1}) links[link].finish();
    return others;
  };
  const int64_t sends = add(m.exchange->sends, out.out);
  const auto messages = static_cast<double>(std::max(sends, add(m.exchange->receives, out.in)));
  out.ready = m.begin + messages * profile.message_seconds +
              (messages > 0 ? profile.exchange_seconds : profile.pass_seconds);
  out.copied = out.ready + own_copy_seconds(profile, m.rank, *m.exchange);
  if (!profile.gpu) out.ready = out.copied;  // host transports copy this message first
  return out;
}

}  // namespace

size_t link_of(const MachineProfile& profile, int32_t a, int32_t b) {
  const auto in_node = static_cast<int32_t>(profile.node_ranks);
  return a / in_node == b / in_node ? 0 : 1;
}

double own_copy_seconds(const MachineProfile& profile, int32_t rank, const RecordedExchange& x) {
  double all = 0;
  for (const auto* list : {&x.sends, &x.receives})
    for (const PeerBytes& m : *list) all += static_cast<double>(m.bytes);
  return 2 * static_cast<double>(bytes_to(x.sends, rank)) /
         profile.pass_rate(PassKind::kCopy, profile.node_ranks * all);
}

double reduce_seconds(const MachineProfile& profile, int64_t bytes, int world) {
  if (world == 1) return 0;
  const double levels = std::bit_width(static_cast<unsigned>(world - 1));
  const double rate = world > profile.node_ranks ? profile.network_bytes : profile.node_bytes;
  return profile.exchange_seconds + 2 * levels * profile.message_seconds +
         2 * static_cast<double>(bytes) / rate;
}

void require_message(const std::vector<PeerBytes>& messages, int32_t rank, int32_t peer,
                     int64_t bytes) {
  const auto same = std::find_if(messages.begin(), messages.end(), [&](const PeerBytes& m) {
    return m.peer == rank && m.bytes == bytes;
  });
  MUONRT_CHECK_INTERNAL(same != messages.end(), "ranks ", rank, " and ", peer,
                        " disagree about a message of ", bytes, " bytes");
}

ExchangeModel exchange_by_rank(const MachineProfile& profile) {
  return [&profile](std::span<const ExchangeMember> members, std::span<double> ended) {
    std::map<int32_t, size_t> at;
    std::vector<RankLoad> loads;
    double last = 0;
    for (const ExchangeMember& m : members) {
      at[m.rank] = loads.size();
      const RankLoad& load = loads.emplace_back(load_of(profile, m));
      ended[at[m.rank]] = load.copied;
      for (size_t link : {0, 1})
        last = std::max(last, load.ready + std::max(load.out[link].bytes(), load.in[link].bytes()) /
                                               rate_of(profile, link));
    }
    for (size_t k = 0; k < members.size(); ++k) {
      const ExchangeMember& m = members[k];
      const RankLoad& from = loads[k];
      for (const auto& [peer, bytes] : m.exchange->sends) {
        if (peer == m.rank) continue;
        const auto to = at.find(peer);
        if (to == at.end()) {
          ended[k] = std::max(ended[k], last);
          continue;
        }
        require_message(members[to->second].exchange->receives, m.rank, peer, bytes);
        const size_t link = link_of(profile, m.rank, peer);
        const auto size = static_cast<double>(bytes);
        const double end = std::max(from.ready, loads[to->second].ready) +
                           std::max(from.out[link].bytes_until(size),
                                    loads[to->second].in[link].bytes_until(size)) /
                               rate_of(profile, link);
        ended[k] = std::max(ended[k], end);
        ended[to->second] = std::max(ended[to->second], end);
      }
      for (const auto& [peer, bytes] : m.exchange->receives) {
        const auto sender = at.find(peer);
        if (sender == at.end()) {
          ended[k] = std::max(ended[k], last);
        } else {
          require_message(members[sender->second].exchange->sends, m.rank, peer, bytes);
        }
      }
    }
  };
}

}  // namespace muonrt
