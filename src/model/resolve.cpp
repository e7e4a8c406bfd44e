#include "model/resolve.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>

#include "base/error.hpp"

namespace muonrt {

namespace {

constexpr double kUnknown = -1;

/// The messages of a rank over one link in one direction, which share it fairly.
class LinkLoad {
 public:
  void add(int64_t bytes) { sizes_.push_back(static_cast<double>(bytes)); }
  void finish() {
    std::sort(sizes_.begin(), sizes_.end());
    double sum = 0;
    for (const double size : sizes_) sums_.push_back(sum += size);
  }
  /// Returns the bytes that the link has moved when a message of this size is complete: no other
  /// message has moved more than this one.
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

/// A rank in an exchange: when its messages can begin, and how they share its links.
struct RankLoad {
  double ready = 0, copied = 0;  // its message to itself has been copied
  LinkLoad out[2], in[2];        // inside the node, between nodes
};

/// Returns 0 if both ranks are in one node, 1 otherwise.
size_t link_of(const MachineProfile& profile, int32_t a, int32_t b) {
  const auto in_node = static_cast<int32_t>(profile.node_ranks);
  return a / in_node == b / in_node ? 0 : 1;
}

double rate_of(const MachineProfile& profile, size_t link) {
  return link == 0 ? profile.node_bytes : profile.network_bytes;
}

RankLoad load_of(const MachineProfile& profile, const ExchangeMember& m) {
  RankLoad out;
  double own = 0;
  const auto add = [&](const std::vector<PeerBytes>& messages, LinkLoad* links) {
    int64_t others = 0;
    for (const auto& [peer, bytes] : messages) {
      if (peer == m.rank) {
        own = static_cast<double>(bytes);
        continue;
      }
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
  out.copied = out.ready + 2 * own / profile.pass_bytes;
  return out;
}

/// A tree over the ranks, up and down.
double reduce_seconds(const MachineProfile& profile, int64_t bytes, int world) {
  if (world == 1) return 0;
  const double levels = std::bit_width(static_cast<unsigned>(world - 1));
  const double rate = world > profile.node_ranks ? profile.network_bytes : profile.node_bytes;
  return profile.exchange_seconds + 2 * levels * profile.message_seconds +
         2 * static_cast<double>(bytes) / rate;
}

/// Errors: INTERNAL unless `messages` has one of these bytes with `rank`.
void require_message(const std::vector<PeerBytes>& messages, int32_t rank, int32_t peer,
                     int64_t bytes) {
  const auto same = std::find_if(messages.begin(), messages.end(), [&](const PeerBytes& m) {
    return m.peer == rank && m.bytes == bytes;
  });
  MUONRT_CHECK_INTERNAL(same != messages.end(), "ranks ", rank, " and ", peer,
                        " disagree about a message of ", bytes, " bytes");
}

/// One stream: what has run, and its clock.
struct StreamClock {
  const std::vector<RecordedOp>* ops;
  bool computes;
  size_t next = 0;
  double now = 0;
  bool joined = false;  // the next op is an exchange or a reduction that has begun
};

class Resolver {
 public:
  Resolver(std::span<const RankRecording* const> ranks, const MachineProfile& profile, int world,
           const ExchangeModel& exchange)
      : ranks_(ranks), profile_(profile), world_(world), exchange_(exchange), out_(ranks.size()) {
    for (size_t r = 0; r < ranks.size(); ++r) {
      index_[ranks[r]->rank] = r;
      out_[r].rank = ranks[r]->rank;
      streams_.push_back({&ranks[r]->compute, true});
      streams_.push_back({&ranks[r]->exchange, false});
      events_.emplace_back(static_cast<size_t>(ranks[r]->events), kUnknown);
      for (const RecordedExchange& x : ranks[r]->exchanges) ++expected_[x.key];
    }
  }

  std::vector<RankTimes> run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (size_t i = 0; i < streams_.size(); ++i) progress = advance(i) || progress;
    }
    for (size_t i = 0; i < streams_.size(); ++i) {
      MUONRT_CHECK_INTERNAL(streams_[i].next == streams_[i].ops->size(), "rank ", out_[i / 2].rank,
                            " waits forever in the model, at operation ", streams_[i].next, " of ",
                            streams_[i].ops->size());
    }
    for (size_t r = 0; r < out_.size(); ++r) {
      // The compute stream ends last, except for an exchange for which it does not wait.
      StreamClock& compute = streams_[2 * r];
      move_to(compute, r, streams_[2 * r + 1].now, &RankTimes::exposed);
      out_[r].seconds = compute.now;
    }
    return std::move(out_);
  }

 private:
  /// Runs a stream until it must wait for another one. Returns whether anything has run.
  bool advance(size_t i) {
    const size_t first = streams_[i].next;
    while (streams_[i].next < streams_[i].ops->size() && step(i)) continue;
    return streams_[i].next != first;
  }

  bool step(size_t i) {
    StreamClock& s = streams_[i];
    const size_t r = i / 2;
    const RecordedOp& op = (*s.ops)[s.next];
    if (s.joined) return false;  // `finish` continues
    const double host = op.after < 0 ? 0 : event(r, op.after);
    if (host == kUnknown) return false;
    if (op.kind == OpKind::kWait && event(r, op.index) == kUnknown) return false;
    move_to(s, r, host + op.enqueued, &RankTimes::launch);
    switch (op.kind) {
      case OpKind::kWait:
        move_to(s, r, event(r, op.index), &RankTimes::exposed);
        break;
      case OpKind::kRecord:
        events_[r][static_cast<size_t>(op.index)] = s.now;
        break;
      case OpKind::kTimestamp:
        *op.where = std::llround(s.now * 1e9) + 1;
        break;
      case OpKind::kProducts:
      case OpKind::kLocal:
        s.now += op.seconds;
        (!s.computes                    ? out_[r].exchange
         : op.kind == OpKind::kProducts ? out_[r].products
                                        : out_[r].local) += op.seconds;
        break;
      case OpKind::kExchange:
      case OpKind::kReduce:
        return join(i, op);
    }
    ++s.next;
    return true;
  }

  double event(size_t r, int64_t number) const { return events_[r][static_cast<size_t>(number)]; }

  /// Advances a clock; the compute stream notes the reason.
  void move_to(StreamClock& s, size_t r, double to, double RankTimes::*reason) {
    if (to <= s.now) return;
    if (s.computes) out_[r].*reason += to - s.now;
    s.now = to;
  }

  /// Begins an exchange or a reduction, and ends it if this stream is the last one. Returns whether
  /// it has ended.
  bool join(size_t i, const RecordedOp& op) {
    const size_t r = i / 2;
    const RecordedExchange* exchange = op.kind == OpKind::kExchange
                                           ? &ranks_[r]->exchanges[static_cast<size_t>(op.index)]
                                           : nullptr;
    // Reductions of all ranks have negative keys, in the order in which a rank takes part in them.
    const int64_t key = exchange ? exchange->key : -1 - reductions_[r]++;
    std::vector<ExchangeMember>& members = waiting_[key];
    streams_[i].joined = true;
    members.push_back({out_[r].rank, streams_[i].now, exchange});
    if (members.size() < (exchange ? expected_[key] : ranks_.size())) return false;
    std::vector<double> ended;
    for (const ExchangeMember& m : members) ended.push_back(m.begin);
    if (exchange) {
      exchange_(members, ended);
    } else {
      const double last = *std::max_element(ended.begin(), ended.end());
      std::fill(ended.begin(), ended.end(), last + reduce_seconds(profile_, op.bytes, world_));
    }
    for (size_t k = 0; k < members.size(); ++k) end(members[k], ended[k]);
    waiting_.erase(key);
    return true;
  }

  void end(const ExchangeMember& member, double time) {
    const size_t r = index_[member.rank];
    StreamClock& s = streams_[2 * r + 1];
    out_[r].exchange += time - member.begin;
    s.now = time;
    s.joined = false;
    ++s.next;
    if (!member.exchange) return;
    for (const auto& [peer, bytes] : member.exchange->sends) {
      if (peer == member.rank) continue;
      out_[r].sent_bytes += bytes;
      ++out_[r].messages;
    }
    for (const auto& [peer, bytes] : member.exchange->receives)
      if (peer != member.rank) out_[r].received_bytes += bytes;
  }

  std::span<const RankRecording* const> ranks_;
  const MachineProfile& profile_;
  int world_;
  const ExchangeModel& exchange_;
  std::vector<RankTimes> out_;
  std::vector<StreamClock> streams_;         // compute and exchange of each rank
  std::vector<std::vector<double>> events_;  // by rank and number
  std::map<int32_t, size_t> index_;          // by rank
  std::map<int64_t, size_t> expected_;       // by key: simulated ranks of the exchange
  std::map<int64_t, std::vector<ExchangeMember>> waiting_;
  std::map<size_t, int64_t> reductions_;  // by rank
};

}  // namespace

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

std::vector<RankTimes> resolve(std::span<const RankRecording* const> ranks,
                               const MachineProfile& profile, int world,
                               const ExchangeModel& exchange) {
  return Resolver(ranks, profile, world, exchange).run();
}

}  // namespace muonrt
