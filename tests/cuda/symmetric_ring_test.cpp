// A model of the ring between producers and consumers of two blocks of a cluster: every actor is a
// list of small actions, one of which that can go on is taken at random. The phases are those of
// ring.hpp, which the kernel uses; faults are planted to see that the model would notice.

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <deque>
#include <random>
#include <string>

#include "cuda/symmetric/ring.hpp"

using namespace muonrt::cuda;

namespace {

enum class Fault {
  kNone,
  kNoEmptyWait,    // a producer fills a stage that is being read
  kNoPeerWait,     // a producer copies into the other block's stage that is being read
  kNoPeerArrival,  // consumers do not tell the other block
  kEarlyRelease,   // a consumer gives a stage back before it has read it
  kWrongParity,    // a producer waits for the phase after the one it needs
  kNoFullWait,     // a consumer reads before the copies are there
  kFillsAlone,     // D of a pair without the other block's arrival: it may get two phases ahead
  kNoLastMeeting,  // a block ends while the other still copies into it
};

/// A barrier as mbarrier has it.
struct Barrier {
  int arrivals = 0, pending = 0, bytes = 0;
  uint32_t phase = 0;

  explicit Barrier(int count = 0) : arrivals(count), pending(count) {}
  void arrive() {
    --pending;
    settle();
  }
  void come(int n) {
    bytes -= n;
    settle();
  }
  void settle() {
    if (pending != 0 || bytes != 0) return;
    phase ^= 1;
    pending = arrivals;
  }
  bool passed(uint32_t parity) const { return phase != parity; }
};

struct Block {
  std::array<Barrier, kRingStages> full, empty, peer_empty;
  // What lies in a stage: the fill each of its parts belongs to, own (0) and shared halves (1, 2).
  std::array<std::array<int, 3>, kRingStages> holds;
  std::array<int, kRingStages> readers;
  bool ended = false;
};

/// A copy under way: one part of one block's stage.
struct Copy {
  int block, stage, part, fill;
};

class Model {
 public:
  /// @param pairs    fills of pairs, the same in both blocks; then each has its own number.
  Model(int pairs, std::array<int, 2> singles, Fault fault, uint64_t seed)
      : fault_(fault), random_(seed) {
    for (int b = 0; b < 2; ++b) {
      total_[b] = pairs + singles[b];
      for (int s = 0; s < kRingStages; ++s) {
        blocks_[b].full[s] = Barrier(2);
        blocks_[b].empty[s] = Barrier(kConsumers);
        blocks_[b].peer_empty[s] = Barrier(kConsumers);
        blocks_[b].holds[s] = {-1, -1, -1};
        blocks_[b].readers[s] = 0;
      }
    }
    pairs_ = pairs;
  }

  /// What went wrong, or nothing.
  std::string run() {
    while (wrong_.empty() && !all_ended()) {
      std::array<int, 9> order = {0, 1, 2, 3, 4, 5, 6, 7, 8};
      std::shuffle(order.begin(), order.end(), random_);
      bool moved = false;
      for (const int actor : order) {
        moved = actor == 8  ? land()
                : actor < 2 ? produce(actor)
                : actor < 6 ? consume(actor - 2)
                            : end(actor - 6);
        if (moved) break;
      }
      if (!moved && wrong_.empty()) wrong_ = "nobody can go on";
    }
    return wrong_;
  }

 private:
  struct Consumer {
    int fill = 0;
    bool reading = false;
  };

  bool all_ended() const { return blocks_[0].ended && blocks_[1].ended; }

  bool produce(int b) {
    const int fill = produced_[b];
    if (fill >= total_[b]) return false;
    Block& me = blocks_[b];
    const bool pair = fill < pairs_;
    const int stage = stage_of(fill);
    const uint32_t parity = waits(fill) ? parity_before(fill) ^ (fault_ == Fault::kWrongParity) : 0;
    if (waits(fill) && fault_ != Fault::kNoEmptyWait && !me.empty[stage].passed(parity))
      return false;
    if (waits(fill) && pair && fault_ != Fault::kNoPeerWait && !me.peer_empty[stage].passed(parity))
      return false;
    me.full[stage].bytes += 3;
    me.full[stage].arrive();
    copies_.push_back({b, stage, 0, fill});
    const bool d = fill % 5 == 4;  // else operands
    if (pair && !d) {
      for (int to = 0; to < 2; ++to) copies_.push_back({to, stage, 1 + b, fill});
    } else {
      for (int part = 1; part < 3; ++part) copies_.push_back({b, stage, part, fill});
    }
    Block& second = pair && d && fault_ != Fault::kFillsAlone ? blocks_[b ^ 1] : me;
    if (second.ended) wrong_ = "an arrival at a block that has ended";
    second.full[stage].arrive();
    ++produced_[b];
    return true;
  }

  /// One of the copies under way arrives.
  bool land() {
    if (copies_.empty()) return false;
    const auto at = static_cast<ptrdiff_t>(random_() % copies_.size());
    const Copy copy = copies_[static_cast<size_t>(at)];
    copies_.erase(copies_.begin() + at);
    Block& to = blocks_[copy.block];
    if (to.ended) wrong_ = "a copy into a block that has ended";
    if (to.readers[copy.stage] > 0) wrong_ = "a stage is overwritten while it is read";
    to.holds[copy.stage][copy.part] = copy.fill;
    to.full[copy.stage].come(1);
    return true;
  }

  /// Consumer c % 2 of block c / 2 begins to read a stage, or ends it.
  bool consume(int c) {
    const int b = c / 2;
    Block& me = blocks_[b];
    Consumer& consumer = consumers_[c];
    if (consumer.fill >= total_[b]) return false;
    const int stage = stage_of(consumer.fill);
    if (!consumer.reading) {
      if (fault_ != Fault::kNoFullWait && !me.full[stage].passed(parity_of(consumer.fill)))
        return false;
      for (const int held : me.holds[stage])
        if (held != consumer.fill) wrong_ = "a stage is read that holds something else";
      consumer.reading = true;
      ++me.readers[stage];
      if (fault_ == Fault::kEarlyRelease) release(b, consumer.fill);
      return true;
    }
    for (const int held : me.holds[stage])
      if (held != consumer.fill) wrong_ = "a stage changed while it was read";
    consumer.reading = false;
    --me.readers[stage];
    if (fault_ != Fault::kEarlyRelease) release(b, consumer.fill);
    ++consumer.fill;
    return true;
  }

  void release(int b, int fill) {
    blocks_[b].empty[stage_of(fill)].arrive();
    if (fill >= pairs_ || fault_ == Fault::kNoPeerArrival) return;
    if (blocks_[b ^ 1].ended) wrong_ = "an arrival at a block that has ended";
    blocks_[b ^ 1].peer_empty[stage_of(fill)].arrive();
  }

  bool done(int b) const {
    return produced_[b] == total_[b] && consumers_[2 * b].fill == total_[b] &&
           consumers_[2 * b + 1].fill == total_[b];
  }
  /// Blocks end together.
  bool end(int b) {
    const bool may = fault_ == Fault::kNoLastMeeting ? done(b) : done(0) && done(1);
    if (blocks_[b].ended || !may) return false;
    blocks_[b].ended = true;
    return true;
  }

  Fault fault_;
  std::mt19937_64 random_;
  int pairs_ = 0;
  std::array<int, 2> total_ = {}, produced_ = {};
  std::array<Block, 2> blocks_;
  std::array<Consumer, 4> consumers_;
  std::deque<Copy> copies_;
  std::string wrong_;
};

/// Runs with other interleavings and other lengths until something goes wrong.
std::string first_wrong(Fault fault, int runs) {
  for (int i = 0; i < runs; ++i) {
    const int pairs = i % 23, a = i % 7 * 3, b = i % 5 * 4;
    const std::string wrong = Model(pairs, {a, b}, fault, static_cast<uint64_t>(i)).run();
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace

TEST_CASE("symmetric ring: no interleaving overwrites, misses or blocks", "[emulated]") {
  CHECK(first_wrong(Fault::kNone, 20000) == "");
}

TEST_CASE("symmetric ring: each planted fault is found", "[emulated]") {
  for (const Fault fault :
       {Fault::kNoEmptyWait, Fault::kNoPeerWait, Fault::kNoPeerArrival, Fault::kEarlyRelease,
        Fault::kWrongParity, Fault::kNoFullWait, Fault::kFillsAlone, Fault::kNoLastMeeting}) {
    CAPTURE(static_cast<int>(fault));
    CHECK_FALSE(first_wrong(fault, 2000).empty());
  }
}
