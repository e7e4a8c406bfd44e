#include <catch2/catch.hpp>

#include "comm/host_comm.hpp"
#include "support/attempts.hpp"
#include "support/rank_check.hpp"

// How many ranks must be left, so that two parts of a world do not settle a step differently.

using namespace muonrt;

TEST_CASE("recover: too few of a world settle nothing, unless the caller takes it",
          "[unit][recover]") {
  world::Case c = world::on_mesh({4});
  world::add(c, "w", {8, 4}, {{PlacementKind::kShard, 0, 1}});
  ThreadGroup with_lowest(2), without(2), alone(1);
  world::on_each(c, [&](world::Rank& rank, Comm& comm) {
    StepReport report;
    rank.step(0, report);
    const bool lowest = comm.rank() % 2 == 0;  // 0 and 2, or 1 and 3
    HostComm half((lowest ? with_lowest : without).transport(comm.rank() / 2));
    const auto status = [&](Comm& survivors, SurvivorPolicy policy) {
      try {
        const Recovery done = rank.optimizer().recover(survivors, policy);
        return done.outcome == Recovery::Outcome::kNothing && done.steps == 1 ? Status::kOk
                                                                              : Status::kInternal;
      } catch (const Error& e) {
        const bool counts =
            e.message().find("2 of the optimizer's 4 ranks are here") != std::string::npos ||
            survivors.size() == 1 || e.status() != Status::kUndecided;
        return counts ? e.status() : Status::kInternal;
      }
    };
    RANK_CHECK(status(half, SurvivorPolicy::kMajority) ==
               (lowest ? Status::kOk : Status::kUndecided));
    RANK_CHECK(status(half, SurvivorPolicy::kAny) == Status::kOk);
    // Other policies than a peer's.
    RANK_CHECK(status(half, comm.rank() < 2 ? SurvivorPolicy::kAny : SurvivorPolicy::kMajority) ==
               Status::kMismatch);
    if (comm.rank() == 0) {
      HostComm one(alone.transport(0));
      RANK_CHECK(status(one, SurvivorPolicy::kMajority) == Status::kUndecided);
      RANK_CHECK(status(one, SurvivorPolicy::kAny) == Status::kOk);
    }
    RANK_CHECK(rank.step(1, report) == Status::kOk);  // nothing has happened to it
  });
}
