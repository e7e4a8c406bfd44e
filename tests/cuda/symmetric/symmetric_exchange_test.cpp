// A model of the exchange of sums between the blocks of a cluster (sm90_small.cu): warps of every
// block read the ring, leave their sums in its memory, meet, read all blocks' sums, meet, end; one
// that can go on is taken at random. Faults are planted to see that the model would notice.

#include <catch2/catch.hpp>
#include <random>
#include <string>
#include <vector>

namespace {

enum class Fault {
  kNone,
  kNoMeetingOfWarps,   // a warp writes sums over stages that another's products still read
  kNoMeetingOfBlocks,  // a block reads sums that are not there yet
  kOnlyOwnWarps,       // the same: the warps of a block meet instead of those of the cluster
  kNoLastMeeting,      // a block ends, and its memory with it, while others read
  kReusedEarly,        // a block writes over its sums when it has read what it needs
  kProducerStaysAway,  // a thread that does not come to a meeting of all
};

constexpr int kWarps = 4;  // of a warpgroup

/// What a warp does, in order; the producer's does the meetings of all alone.
enum class Act { kRead, kMeetWarps, kWrite, kMeetAll, kGather, kReuse, kMeetAllAgain, kEnd };

class Model {
 public:
  Model(int blocks, Fault fault, uint64_t seed) : fault_(fault), random_(seed), blocks_(blocks) {
    for (int b = 0; b < blocks; ++b)
      for (int w = 0; w <= kWarps; ++w) warps_.push_back({b, w == kWarps, acts_of(w == kWarps)});
    written_.assign(static_cast<size_t>(blocks), 0);
    reused_.assign(static_cast<size_t>(blocks), false);
  }

  /// What went wrong, or nothing.
  std::string run() {
    while (wrong_.empty()) {
      std::vector<size_t> able;
      bool all_ended = true;
      for (size_t i = 0; i < warps_.size(); ++i) {
        all_ended = all_ended && ended(i);
        if (!ended(i) && may(i)) able.push_back(i);
      }
      if (all_ended) return "";
      if (able.empty()) return "nobody can go on";
      step(able[random_() % able.size()]);
    }
    return wrong_;
  }

 private:
  struct Warp {
    int block;
    bool producer;
    std::vector<Act> acts;
    size_t at = 0;
    int part = 0;  // of an act of several parts
  };

  std::vector<Act> acts_of(bool producer) const {
    std::vector<Act> acts;
    const auto add = [&](Act act, bool unless = false) {
      if (!unless) acts.push_back(act);
    };
    if (!producer) {
      add(Act::kRead);
      add(Act::kMeetWarps, fault_ == Fault::kNoMeetingOfWarps);
      add(Act::kWrite);
      if (fault_ == Fault::kOnlyOwnWarps) add(Act::kMeetWarps);
    }
    const bool no_first = fault_ == Fault::kNoMeetingOfBlocks || fault_ == Fault::kOnlyOwnWarps ||
                          (producer && fault_ == Fault::kProducerStaysAway);
    add(Act::kMeetAll, no_first);
    if (!producer) add(Act::kGather);
    if (!producer && fault_ == Fault::kReusedEarly) add(Act::kReuse);
    add(Act::kMeetAllAgain, fault_ == Fault::kNoLastMeeting);
    add(Act::kEnd);
    return acts;
  }

  Act act_of(size_t i) const { return warps_[i].acts[warps_[i].at]; }
  bool ended(size_t i) const { return warps_[i].at == warps_[i].acts.size(); }
  bool block_ended(int block) const {
    for (size_t i = 0; i < warps_.size(); ++i)
      if (warps_[i].block == block && !ended(i)) return false;
    return true;
  }

  /// Whether another warp is still in front of this one's place in the acts.
  bool met(size_t i, bool all) const {
    for (size_t j = 0; j < warps_.size(); ++j) {
      const bool concerns = all || (warps_[j].block == warps_[i].block && !warps_[j].producer);
      if (!concerns) continue;
      if (places(j, all) < places(i, all)) return false;
    }
    return true;
  }
  /// Meetings of this kind that a warp has come to, the one it stands at included.
  size_t places(size_t i, bool all) const {
    size_t count = 0;
    for (size_t a = 0; a <= warps_[i].at && a < warps_[i].acts.size(); ++a) {
      const Act act = warps_[i].acts[a];
      count += all ? act == Act::kMeetAll || act == Act::kMeetAllAgain : act == Act::kMeetWarps;
    }
    return count;
  }
  bool may(size_t i) const {
    const Act act = act_of(i);
    if (act == Act::kMeetWarps) return met(i, false);
    if (act == Act::kMeetAll || act == Act::kMeetAllAgain) return met(i, true);
    return true;
  }

  void step(size_t i) {
    Warp& warp = warps_[i];
    const auto block = static_cast<size_t>(warp.block);
    switch (act_of(i)) {
      case Act::kRead:  // begins, then ends
        if (warp.part++ == 0) return;
        break;
      case Act::kWrite:
        // A warp that has not begun to read would find sums in the ring, too.
        if (not_read(warp.block)) wrong_ = "sums are written over stages that are being read";
        ++written_[block];
        break;
      case Act::kGather: {
        const int from = warp.part++;
        if (block_ended(from)) wrong_ = "sums of a block that has ended";
        if (written_[static_cast<size_t>(from)] < kWarps) wrong_ = "sums that are not there yet";
        if (reused_[static_cast<size_t>(from)]) wrong_ = "sums that were written over";
        if (warp.part < blocks_) return;
        break;
      }
      case Act::kReuse:
        reused_[block] = true;
        break;
      default:
        break;
    }
    warp.part = 0;
    ++warp.at;
  }
  bool not_read(int block) const {
    for (size_t i = 0; i < warps_.size(); ++i)
      if (warps_[i].block == block && !warps_[i].producer && !ended(i) && act_of(i) == Act::kRead)
        return true;
    return false;
  }

  Fault fault_;
  std::mt19937_64 random_;
  int blocks_;
  std::vector<Warp> warps_;
  std::vector<int> written_;
  std::vector<bool> reused_;
  std::string wrong_;
};

std::string first_wrong(Fault fault, int runs) {
  for (int i = 0; i < runs; ++i) {
    const std::string wrong = Model(i % 2 == 0 ? 2 : 4, fault, static_cast<uint64_t>(i)).run();
    if (!wrong.empty()) return wrong;
  }
  return "";
}

}  // namespace

TEST_CASE("symmetric exchange: no interleaving reads sums too early or too late", "[emulated]") {
  CHECK(first_wrong(Fault::kNone, 2000) == "");
}

TEST_CASE("symmetric exchange: each planted fault is found", "[emulated]") {
  for (const Fault fault :
       {Fault::kNoMeetingOfWarps, Fault::kNoMeetingOfBlocks, Fault::kOnlyOwnWarps,
        Fault::kNoLastMeeting, Fault::kReusedEarly, Fault::kProducerStaysAway}) {
    CAPTURE(static_cast<int>(fault));
    CHECK_FALSE(first_wrong(fault, 500).empty());
  }
}
