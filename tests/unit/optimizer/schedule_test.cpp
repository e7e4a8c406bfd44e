#include "pipeline/schedule.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>

using namespace muonrt;

TEST_CASE("schedule: the order of stages is the printed one", "[unit][pipeline]") {
  CHECK(to_text(schedule(4, 2, CommitMode::kAtomic)) ==
        "gather(0) gather(1) scan orthogonalize(0) gather(2) orthogonalize(1) gather(3) "
        "orthogonalize(2) orthogonalize(3) vote commit(0) commit(1) commit(2) commit(3) adamw");
  CHECK(
      to_text(schedule(3, 1, CommitMode::kAtomic)) ==
      "gather(0) scan orthogonalize(0) gather(1) orthogonalize(1) gather(2) orthogonalize(2) vote "
      "commit(0) commit(1) commit(2) adamw");
  CHECK(to_text(schedule(4, 2, CommitMode::kEager)) ==
        "scan vote gather(0) gather(1) adamw orthogonalize(0) gather(2) orthogonalize(1) commit(0) "
        "gather(3) orthogonalize(2) commit(1) orthogonalize(3) commit(2) commit(3) outcome");
  CHECK(to_text(schedule(2, 1, CommitMode::kEager)) ==
        "scan vote gather(0) adamw orthogonalize(0) commit(0) gather(1) orthogonalize(1) commit(1) "
        "outcome");
  CHECK(to_text(schedule(0, 3, CommitMode::kAtomic)) == "scan vote adamw");
}

TEST_CASE("schedule: exactly min(window, slots) chunks are resident at the peak",
          "[unit][pipeline]") {
  for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
    for (int32_t slots = 0; slots <= 12; ++slots) {
      for (int window = 1; window <= 8; ++window) {
        int resident = 0, peak = 0;
        for (const Action& a : schedule(slots, window, commit)) {
          if (a.stage == Stage::kOrthogonalize) --resident;
          if (a.stage == Stage::kGather) peak = std::max(peak, ++resident);
        }
        CHECK(resident == 0);
        CHECK(peak == std::min(window, slots));
      }
    }
  }
}

TEST_CASE("schedule: every slot is gathered, orthogonalized and committed once, in that order",
          "[unit][pipeline]") {
  for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
    for (int window = 1; window <= 8; ++window) {
      std::map<int32_t, std::vector<Stage>> of_slot;
      std::map<int32_t, int> in_flight;
      for (const Action& a : schedule(11, window, commit)) {
        if (a.slot >= 0) of_slot[a.slot].push_back(a.stage);
        // An eager update must have left its buffers before the next chunk's update lands there.
        if (commit == CommitMode::kEager && a.stage == Stage::kOrthogonalize) {
          CHECK(in_flight[a.slot % window]++ == 0);
        }
        if (commit == CommitMode::kEager && a.stage == Stage::kCommit) --in_flight[a.slot % window];
      }
      CHECK(of_slot.size() == 11);
      for (const auto& [slot, stages] : of_slot) {
        CHECK(stages == std::vector<Stage>{Stage::kGather, Stage::kOrthogonalize, Stage::kCommit});
      }
    }
  }
}
