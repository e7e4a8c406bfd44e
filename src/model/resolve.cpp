#include "model/resolve.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/error.hpp"

namespace muonrt {

namespace {

constexpr double kUnknown = -1;

/// What a stream does until its next operation begins.
enum class StreamState {
  kReady,    // the next operation can begin
  kSleeps,   // sleeps until a given time
  kWorks,    // computes; the end depends on how many streams compute
  kBlocked,  // waits until other ranks take part in its exchange
};
/// What a stream has completed when its sleep or its work ends.
enum class StreamPhase {
  kLaunch,    // the host's enqueuing of the next operation
  kHandover,  // the delay until the stream notices an event
  kOp,        // a pass or products
  kOwn,       // the copy of a rank's message to itself
  kLatency,   // the delay until a message can be copied
  kMessage,   // the copy of a message
  kExchange,  // an exchange or a reduction
};

/// One stream: its operations, and the time up to which they have run.
struct StreamClock {
  const std::vector<RecordedOp>* ops;
  bool computes;
  size_t next = 0;
  double now = 0;  // end of the last operation
  StreamState state = StreamState::kReady;
  StreamPhase phase = StreamPhase::kOp;
  double end = 0, rate = 1;  // when a sleep or work ends, and the rate of work
  // Used in an exchange whose messages are copies on the cores of a node.
  const RecordedExchange* exchange = nullptr;
  double offered = kUnknown;        // when other ranks can copy its messages
  size_t copying = 0;               // index in exchange->receives
  std::vector<bool> received = {};  // one flag for each receive
  int64_t missing = 0;              // number of messages to and from other ranks that remain
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
      ++nodes_[node_of(r)].simulated;
      for (const RecordedExchange& x : ranks[r]->exchanges) ++expected_[x.key];
    }
    if (!profile.shares_cores()) return;
    for (const RankRecording* r : ranks)
      for (const RecordedExchange& x : r->exchanges)
        for (const auto* list : {&x.sends, &x.receives})
          for (const PeerBytes& m : *list)
            if (!index_.contains(m.peer) || link_of(profile, r->rank, m.peer) != 0)
              linked_.insert(x.key);
  }

  std::vector<RankTimes> run() {
    do {
      for (bool progress = true; progress;) {
        progress = false;
        for (size_t i = 0; i < streams_.size(); ++i)
          while (begin(i)) progress = true;
      }
    } while (advance());
    for (size_t i = 0; i < streams_.size(); ++i) {
      MUONRT_CHECK_INTERNAL(streams_[i].next == streams_[i].ops->size(), "rank ", out_[i / 2].rank,
                            " waits forever in the model, at operation ", streams_[i].next, " of ",
                            streams_[i].ops->size());
    }
    for (size_t r = 0; r < out_.size(); ++r) {
      // The compute stream ends last, unless it does not wait for the last exchange.
      StreamClock& compute = streams_[2 * r];
      move_to(compute, r, streams_[2 * r + 1].now, &RankTimes::exposed);
      out_[r].seconds = compute.now;
    }
    return std::move(out_);
  }

 private:
  /// The number of simulated ranks of a node, and the threads that their streams need.
  struct Node {
    double simulated = 0;
    double products = 0, others = 0;  // threads
  };

  int32_t node_of(size_t r) const {
    return ranks_[r]->rank / static_cast<int32_t>(profile_.node_ranks);
  }
  double event(size_t r, int64_t number) const { return events_[r][static_cast<size_t>(number)]; }
  size_t rank_of(const StreamClock& s) const {
    return static_cast<size_t>(&s - streams_.data()) / 2;
  }
  StreamClock& exchange_stream(int32_t rank) { return streams_[2 * index_.at(rank) + 1]; }

  void sleep(StreamClock& s, double until, StreamPhase phase) {
    s.state = StreamState::kSleeps;
    s.phase = phase;
    s.end = until;
  }
  void work(StreamClock& s, double seconds, StreamPhase phase) {
    s.state = StreamState::kWorks;
    s.phase = phase;
    s.rate = 1;
    s.end = (phase == StreamPhase::kOp ? s.now : now_) + seconds;
  }
  /// Advances a stream's time. For a compute stream, also adds the wait to `reason`.
  void move_to(StreamClock& s, size_t r, double to, double RankTimes::*reason) {
    if (to <= s.now) return;
    if (s.computes) out_[r].*reason += to - s.now;
    s.now = to;
  }

  /// Begins the next operation of a stream. Returns true if the stream has changed.
  bool begin(size_t i) {
    StreamClock& s = streams_[i];
    if (s.state != StreamState::kReady || s.next == s.ops->size()) return false;
    const size_t r = i / 2;
    const RecordedOp& op = (*s.ops)[s.next];
    const double host = op.after < 0 ? 0 : event(r, op.after);
    if (host == kUnknown) return false;
    if (op.kind == OpKind::kWait && event(r, op.index) == kUnknown) return false;
    if (host + op.enqueued > now_) {
      sleep(s, host + op.enqueued, StreamPhase::kLaunch);
      return true;
    }
    move_to(s, r, host + op.enqueued, &RankTimes::launch);
    switch (op.kind) {
      case OpKind::kWait:
        if (event(r, op.index) > s.now) {
          const double latency = wake_seconds(r, profile_.handover_seconds);
          if (latency > 0) {
            sleep(s, event(r, op.index) + latency, StreamPhase::kHandover);
            return true;
          }
        }
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
        work(s, op.seconds, StreamPhase::kOp);
        return true;
      case OpKind::kExchange:
      case OpKind::kReduce:
        join(i, op);
        return true;
    }
    ++s.next;
    return true;
  }

  /// Advances the clock to the next end of a sleep or of work. Returns false if there is none.
  bool advance() {
    if (profile_.shares_cores()) share_cores();
    const auto waits = [](const auto& s) { return works(s) || s.state == StreamState::kSleeps; };
    double next = std::numeric_limits<double>::infinity();
    for (const StreamClock& s : streams_)
      if (waits(s)) next = std::min(next, s.end);
    if (std::isinf(next)) return false;
    now_ = next;
    for (size_t i = 0; i < streams_.size(); ++i)
      if (waits(streams_[i]) && streams_[i].end <= now_) wake(i);
    return true;
  }

  /// Returns the simulated ranks' part of a node's cores.
  double cores_of(int32_t node) const {
    const double ranks =
        std::min(profile_.node_ranks, world_ - static_cast<double>(node) * profile_.node_ranks);
    return profile_.processors * nodes_.at(node).simulated / ranks;
  }
  static bool works(const StreamClock& s) { return s.state == StreamState::kWorks; }
  static bool multiplies(const StreamClock& s) {
    return s.phase == StreamPhase::kOp && (*s.ops)[s.next].kind == OpKind::kProducts;
  }

  /// Sets the rates of all streams that work. Passes and copies are shorter than a time slice of
  /// the scheduler, so they run immediately. Products get the remaining cores.
  void share_cores() {
    for (auto& [number, node] : nodes_) node = {.simulated = node.simulated};
    for (size_t i = 0; i < streams_.size(); ++i) {
      const StreamClock& s = streams_[i];
      if (!works(s)) continue;
      Node& node = nodes_[node_of(i / 2)];
      (multiplies(s) ? node.products : node.others) += s.computes ? profile_.threads() : 1;
    }
    for (size_t i = 0; i < streams_.size(); ++i) {
      StreamClock& s = streams_[i];
      if (!works(s)) continue;
      const Node& node = nodes_[node_of(i / 2)];
      const double cores = cores_of(node_of(i / 2));
      const double kept = node.products > 0 ? 0.001 * cores : 0;  // products never stop
      const double fast = std::min(1.0, (cores - kept) / std::max(node.others, 1e-9));
      const double left = cores - fast * node.others;
      const double rate = multiplies(s) ? std::min(1.0, left / node.products) : fast;
      if (rate == s.rate) continue;
      s.end = now_ + (s.end - now_) * s.rate / rate;
      s.rate = rate;
    }
  }

  /// Returns the seconds until a stream continues after a wait. This is `idle`, or more if threads
  /// compute on all cores: the stream then waits for the end of a time slice.
  double wake_seconds(size_t r, double idle) const {
    if (profile_.gpu || profile_.busy_handover_seconds <= idle) return idle;
    double computing = 0;
    for (size_t i = 0; i < streams_.size(); i += 2)
      if (works(streams_[i]) && node_of(i / 2) == node_of(r)) computing += profile_.threads();
    return computing < cores_of(node_of(r)) ? idle : profile_.busy_handover_seconds;
  }

  /// Ends the sleep or the work of a stream.
  void wake(size_t i) {
    StreamClock& s = streams_[i];
    const size_t r = i / 2;
    s.state = StreamState::kReady;
    switch (s.phase) {
      case StreamPhase::kLaunch:
        return move_to(s, r, s.end, &RankTimes::launch);
      case StreamPhase::kHandover:
        move_to(s, r, s.end, &RankTimes::exposed);
        break;
      case StreamPhase::kOp:
        (!s.computes                                  ? out_[r].exchange
         : (*s.ops)[s.next].kind == OpKind::kProducts ? out_[r].products
                                                      : out_[r].local) += s.end - s.now;
        s.now = s.end;
        break;
      case StreamPhase::kExchange:
        finish_exchange(s, r);
        break;
      case StreamPhase::kOwn:
        s.state = StreamState::kBlocked;
        s.offered = now_;
        if (s.missing == 0) return sleep(s, now_ + profile_.pass_seconds, StreamPhase::kExchange);
        receive(s);
        for (const PeerBytes& m : s.exchange->sends)
          if (m.peer != out_[r].rank) receive(exchange_stream(m.peer));
        return;
      case StreamPhase::kLatency:
        s.state = StreamState::kBlocked;
        return receive(s);
      case StreamPhase::kMessage:
        s.state = StreamState::kBlocked;
        s.received[s.copying] = true;
        count_message(exchange_stream(s.exchange->receives[s.copying].peer),
                      wake_seconds(r, profile_.handover_seconds));
        count_message(s, 0);
        return receive(s);
    }
    ++s.next;
  }

  /// Begins an exchange or a reduction. The last stream to reach the operation computes when the
  /// operation ends.
  void join(size_t i, const RecordedOp& op) {
    const size_t r = i / 2;
    StreamClock& s = streams_[i];
    s.exchange = op.kind == OpKind::kExchange ? &ranks_[r]->exchanges[static_cast<size_t>(op.index)]
                                              : nullptr;
    s.state = StreamState::kBlocked;
    if (s.exchange && profile_.shares_cores() && !linked_.contains(s.exchange->key))
      return begin_copies(s, r);
    // Reductions over all ranks have negative keys, in the order in which a rank reaches them.
    const int64_t key = s.exchange ? s.exchange->key : -1 - reductions_[r]++;
    std::vector<ExchangeMember>& members = waiting_[key];
    members.push_back({out_[r].rank, s.now, s.exchange});
    if (members.size() < (s.exchange ? expected_[key] : ranks_.size())) return;
    std::vector<double> ended;
    for (const ExchangeMember& m : members) ended.push_back(m.begin);
    if (s.exchange) {
      exchange_(members, ended);
    } else {
      const double last = *std::max_element(ended.begin(), ended.end());
      std::fill(ended.begin(), ended.end(), last + reduce_seconds(profile_, op.bytes, world_));
    }
    for (size_t k = 0; k < members.size(); ++k)
      sleep(exchange_stream(members[k].rank), ended[k], StreamPhase::kExchange);
    waiting_.erase(key);
  }

  /// Copies the rank's message to itself. Then each receiver copies its messages one by one, each
  /// message as soon as sender and receiver are ready.
  void begin_copies(StreamClock& s, size_t r) {
    const RecordedExchange& x = *s.exchange;
    s.offered = kUnknown;
    s.received.assign(x.receives.size(), false);
    s.missing = 0;
    for (const PeerBytes& m : x.sends) s.missing += m.peer != out_[r].rank;
    for (size_t k = 0; k < x.receives.size(); ++k) {
      s.received[k] = x.receives[k].peer == out_[r].rank;
      s.missing += !s.received[k];
    }
    for (const PeerBytes& m : x.sends)
      if (m.peer != out_[r].rank) require_exchanged(x.key, m.peer, out_[r].rank, m.bytes);
    work(s, own_copy_seconds(profile_, out_[r].rank, x), StreamPhase::kOwn);
  }

  /// Throws INTERNAL if the peer does not expect this message.
  void require_exchanged(int64_t key, int32_t peer, int32_t rank, int64_t bytes) const {
    const auto& all = ranks_[index_.at(peer)]->exchanges;
    const auto same = std::find_if(all.begin(), all.end(),
                                   [&](const RecordedExchange& x) { return x.key == key; });
    MUONRT_CHECK_INTERNAL(same != all.end(), "rank ", peer, " has no exchange ", key);
    require_message(same->receives, rank, peer, bytes);
  }

  /// Begins to copy the next message from a rank that is ready, if there is one.
  void receive(StreamClock& s) {
    if (s.state != StreamState::kBlocked || s.offered == kUnknown) return;
    const RecordedExchange& x = *s.exchange;
    double first = std::numeric_limits<double>::infinity();
    const double busy = wake_seconds(rank_of(s), profile_.exchange_seconds);
    for (size_t k = 0; k < x.receives.size(); ++k) {
      if (s.received[k]) continue;
      const StreamClock& from = exchange_stream(x.receives[k].peer);
      const bool joined = from.exchange && from.exchange->key == x.key;
      if (!joined || from.offered == kUnknown) continue;
      // If the sender becomes ready last, this rank is sleeping and must be woken.
      const double at =
          from.offered > s.offered ? from.offered + busy : s.offered + profile_.exchange_seconds;
      if (at >= first) continue;
      first = at;
      s.copying = k;
    }
    if (std::isinf(first)) return;
    if (first > now_) return sleep(s, first, StreamPhase::kLatency);
    work(s,
         profile_.message_seconds +
             static_cast<double>(x.receives[s.copying].bytes) / profile_.node_bytes,
         StreamPhase::kMessage);
  }

  /// Counts a message of a rank as complete. The rank notices this after `latency` seconds.
  void count_message(StreamClock& s, double latency) {
    if (--s.missing == 0) sleep(s, now_ + latency, StreamPhase::kExchange);
  }

  void finish_exchange(StreamClock& s, size_t r) {
    out_[r].exchange += s.end - s.now;
    s.now = s.end;
    if (!s.exchange) return;
    for (const auto& [peer, bytes] : s.exchange->sends) {
      if (peer == out_[r].rank) continue;
      out_[r].sent_bytes += bytes;
      ++out_[r].messages;
    }
    for (const auto& [peer, bytes] : s.exchange->receives)
      if (peer != out_[r].rank) out_[r].received_bytes += bytes;
    s.exchange = nullptr;
  }

  std::span<const RankRecording* const> ranks_;
  const MachineProfile& profile_;
  int world_;
  const ExchangeModel& exchange_;
  double now_ = 0;
  std::vector<RankTimes> out_;
  std::vector<StreamClock> streams_;         // compute and exchange of each rank
  std::vector<std::vector<double>> events_;  // for each rank, the times of its events
  std::map<int32_t, size_t> index_;          // for each rank number, its index
  std::map<int32_t, Node> nodes_;
  std::map<int64_t, size_t> expected_;  // number of simulated ranks for each exchange key
  std::set<int64_t> linked_;            // keys of exchanges whose times `exchange_` computes
  std::map<int64_t, std::vector<ExchangeMember>> waiting_;
  std::map<size_t, int64_t> reductions_;  // number of reductions of each rank so far
};

}  // namespace

std::vector<RankTimes> resolve(std::span<const RankRecording* const> ranks,
                               const MachineProfile& profile, int world,
                               const ExchangeModel& exchange) {
  return Resolver(ranks, profile, world, exchange).run();
}

}  // namespace muonrt
