#include "muonrt/recover.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "support/attempts.hpp"
#include "support/bits_cases.hpp"
#include "support/caller_functions.hpp"
#include "support/covering.hpp"
#include "support/one_matrix.hpp"
#include "support/rank_check.hpp"
#include "support/recovery.hpp"
#include "support/sanitized.hpp"
#include "support/thread_ranks.hpp"

// Tests a step that fails during its vote, so that some ranks have committed it and others have not
// received the vote sum. After recover(), either the result is the same as that of a step without
// the fault, or no rank has committed the step.

using namespace muonrt;
using Settled = Recovery::Outcome;

namespace {

constexpr int kSteps = 3;

const Placement kRows{PlacementKind::kShard, 0, 1};

/// Returns a case with three ranks, matrices in several chunks, and AdamW.
world::Case three_ranks() {
  world::Case c = world::on_mesh({3});
  c.steps = kSteps;
  c.settings.chunk_bytes = 200;
  world::add(c, "first", {7, 5}, {kRows});
  world::add(c, "second", {4, 6}, {kRows});
  world::add(c, "bias", {9}, {kRows});
  return c;
}

void check_followed(const world::Case& c, int receiver, const std::vector<int>& cut_off,
                    const world::Tensors& expected, int64_t reductions = 1) {
  const recovery::Result result = recovery::run(c, receiver, cut_off, reductions);
  for (size_t r = 0; r < result.ranks.size(); ++r) {
    const recovery::Ended& end = result.ranks[r];
    INFO("rank " << r << ": " << (end.error ? end.error->message() : "recovered"));
    CHECK(!end.error);
    CHECK(end.settled.outcome == Settled::kRolledForward);
    CHECK(end.settled.steps == c.steps);
    CHECK(end.clipped == result.ranks[static_cast<size_t>(receiver)].clipped);
    if (static_cast<int>(r) == receiver) CHECK(end.step.status == Status::kOk);
    if (std::find(cut_off.begin(), cut_off.end(), r) == cut_off.end()) continue;
    CHECK(end.step.status == Status::kUndecided);
    CHECK(end.step.unchanged);
  }
  CHECK((result.tensors == expected));
}

/// For each rank, checks the recovery after a step in which only this rank receives the vote sum.
/// Also checks the recovery after a step in which all ranks except the last one receive it.
void check_all(const world::Case& c, int64_t reductions = 1) {
  const world::Tensors expected = world::run(c).tensors;
  for (int receiver = 0; receiver < c.world; ++receiver) {
    std::vector<int> cut_off;
    for (int r = 0; r < c.world; ++r)
      if (r != receiver) cut_off.push_back(r);
    INFO("rank " << receiver << " has received the vote sum");
    check_followed(c, receiver, cut_off, expected, reductions);
  }
  INFO("rank " << c.world - 1 << " has not received the vote sum");
  check_followed(c, 0, {c.world - 1}, expected, reductions);
}

}  // namespace

TEST_CASE("recover: ranks without the vote sum follow a rank that has it, on any mesh",
          "[unit][recover]") {
  std::map<std::pair<bool, int>, world::Tensors> references;
  const auto meshes = static_cast<int>(bits::meshes().size());
  const auto rows =
      covering::pairwise({meshes - 1, bits::kSchemes, bits::kVariants, 2, 3}, 20261123);
  for (size_t i = 0; i < rows.size(); i += kSanitized ? 9 : 1) {
    const auto& row = rows[i];
    const bool half = row[3] == 1;
    bits::Factors f;
    f.mesh = static_cast<size_t>(row[0]) + 1;  // mesh 0 has only one rank
    f.scheme = row[1];
    f.variant = row[2];
    f.window = row[4] + 1;
    f.chunk = row[4];
    const world::Case c = bits::make(f, half, kSteps);
    INFO(c.describe());
    auto& expected = references[{half, f.variant}];
    if (expected.params.empty()) expected = bits::reference_ops(half, kSteps, f.variant);
    std::vector<int> cut_off = {c.world - 1};
    for (int r = 1; r < c.world - 1; r += 1 + row[1] % 3) cut_off.push_back(r);
    check_followed(c, 0, cut_off, expected);
  }
}

TEST_CASE("recover: a few worlds, for ThreadSanitizer", "[recover][tsan]") {
  check_all(three_ranks());
}

TEST_CASE("recover: owner state, and slices of AdamW", "[unit][recover]") {
  world::Case c = world::on_mesh({2, 2});
  c.steps = kSteps;
  c.settings.chunk_bytes = 300;
  const Placement sum{PlacementKind::kPartial, 0, 1};
  world::add(c, "w", {7, 5}, {sum, kRows});
  world::add(c, "v", {3, 8}, {sum, kRows});
  world::add(c, "b", {9}, {sum, kRows});
  for (world::Param& p : c.params) p.partial_grads = 2;
  check_all(c);
}

TEST_CASE("recover: bf16 weights with remainders or masters, moments of NorMuon",
          "[unit][recover]") {
  for (const MasterKind kind : {MasterKind::kRemainder, MasterKind::kOwned, MasterKind::kNone}) {
    world::Case c = three_ranks();
    c.settings.groups = world::default_groups();
    c.settings.groups[0].normuon_axis = NormuonAxis::kRows;
    for (world::Param& p : c.params) {
      p.dtype = DType::kBF16;
      p.master_kind = kind;
    }
    check_all(c);
  }
}

TEST_CASE("recover: clipped gradients and clipped heads", "[unit][recover]") {
  world::Case c = three_ranks();
  c.settings.clip_norm = 1.0;
  QkClipSettings& clip = c.params[1].qk_clip;
  clip.kind = QkKind::kQuery;
  clip.layer = 0;
  clip.heads = clip.kv_heads = 2;
  clip.head_dim = 2;
  clip.threshold = 10;
  // The last step clips the other head.
  static const float logits[2][2] = {{40, 5}, {5, 40}};
  c.arguments = [](StepArgs& s, int64_t step, int) {
    s.qk_logits = logits[step == kSteps - 1];
    s.n_qk_logits = 2;
  };
  check_all(c, 2);
  CHECK(recovery::run(c, 0, {1}, 2).ranks[1].clipped ==
        std::vector<std::pair<int32_t, int32_t>>{{0, 1}});
}

TEST_CASE("recover: exchanges of the caller's functions, and forwarded updates",
          "[unit][recover]") {
  world::Case by_callback = three_ranks();
  by_callback.settings.window = 2;
  const world::Tensors expected = world::run(by_callback).tensors;
  world::Board board(by_callback);
  by_callback.adjust = [&](OptimizerSettings& s, int rank) { board.serve(s, rank); };
  check_followed(by_callback, 1, {0, 2}, expected);

  world::Case relayed = world::on_mesh({4});
  relayed.steps = kSteps;
  relayed.settings.max_peers = 1;
  relayed.params = {world::matrix("w", {6, 5}, {{PlacementKind::kReplicate, 0, 1}}),
                    world::matrix("v", {4, 9}, {{PlacementKind::kReplicate, 0, 1}})};
  check_all(relayed);
}

TEST_CASE("recover: if no rank has committed the step, it is discarded", "[unit][recover]") {
  const world::Case c = three_ranks();
  for (int dead = 0; dead < c.world; ++dead) {
    INFO("rank " << dead << " dies in the vote");
    ThreadFaults faults;
    faults.kills.push_back({dead, OperationKind::kReduceSum, 1, /*forever=*/true});
    ThreadGroup left(2);
    world::Case quick = c;
    quick.settings.timeout_ms = 500;
    world::on_each(
        quick,
        [&](world::Rank& rank, Comm& comm) {
          StepReport report;
          rank.step(0, report);
          // All ranks must have completed their first vote before a rank completes its second one.
          char all[3], here = 1;
          comm.allgather(&here, all, 1);
          const world::Tensors before = rank.tensors();
          const world::Ended end = world::attempt(rank, 1);
          if (comm.rank() == dead) return;
          RANK_CHECK(end.status == Status::kUndecided);
          HostComm survivors(left.transport(comm.rank() - (comm.rank() > dead)));
          for (int time = 0; time < 2; ++time) {
            const Recovery settled = rank.optimizer().recover(survivors);
            RANK_CHECK(settled.outcome == Settled::kDiscarded && settled.steps == 1);
          }
          RANK_CHECK(before == rank.tensors());
          const world::Ended next = world::attempt(rank, 1);
          RANK_CHECK(next.status == Status::kInvalidState);
          RANK_CHECK(next.says("1 steps are committed on all surviving ranks"));
        },
        world::host_device, std::move(faults));
  }
}

TEST_CASE("recover: a step that fails after its vote is torn for all ranks", "[unit][recover]") {
  world::Case c = three_ranks();
  c.settings.commit = CommitMode::kEager;
  // Rank 0 has committed its chunks, but does not receive the sum of the second vote.
  const recovery::Result result = recovery::run(c, 1, {0}, 2);
  CHECK(result.ranks[1].step.status == Status::kOk);
  CHECK(result.ranks[0].step.status == Status::kTorn);
  // Rank 2 may not have received the sum either. If the step is torn on both ranks, the error names
  // the rank that comes first among the survivors.
  const bool both = result.ranks[2].step.status == Status::kTorn;
  CHECK((both || result.ranks[2].step.status == Status::kOk));
  const char* const named = both ? "rank 2 is torn" : "rank 0 is torn";
  for (const recovery::Ended& end : result.ranks) {
    REQUIRE(end.error);
    CHECK(end.error->status() == Status::kTorn);
    CHECK(end.error->message().find(named) != std::string::npos);
  }
}

namespace {

std::optional<Error> error_of_recover(Optimizer& optimizer, Comm& survivors) {
  try {
    optimizer.recover(survivors);
  } catch (const Error& e) {
    return e;
  }
  return std::nullopt;
}

/// Runs recover() on a group of two ranks and returns the errors. Each rank has created its
/// optimizer on a different group, which has `sizes[rank]` ranks.
std::vector<std::optional<Error>> unrelated(std::vector<int> sizes) {
  ThreadGroup meeting(2);
  std::vector<std::optional<Error>> out(2);
  transport_test::require_none(transport_test::text_of(transport_test::on_ranks(2, [&](int me) {
    const auto at = static_cast<size_t>(me);
    world::Case c = world::on_mesh({sizes[at]});
    world::add(c, "w", {4, 4}, {kRows});
    world::on_each(c, [&](world::Rank& rank, Comm& comm) {
      StepReport report;
      rank.step(0, report);
      if (comm.rank() != (sizes[at] > 1 ? me : 0)) return;
      HostComm survivors(meeting.transport(me));
      out[at] = error_of_recover(rank.optimizer(), survivors);
      // A failed recovery leaves the optimizer usable.
      if (comm.size() == 1) RANK_CHECK(rank.step(1, report) == Status::kOk);
    });
  })));
  return out;
}

void check_mismatch(const std::vector<std::optional<Error>>& errors, const char* text) {
  for (const auto& e : errors) {
    REQUIRE(e);
    CHECK(e->status() == Status::kMismatch);
    CHECK_THAT(e->message(), Catch::Contains(text));
  }
}

}  // namespace

TEST_CASE("recover: ranks of different optimizers are named, with one error on all ranks",
          "[unit][recover]") {
  check_mismatch(unrelated({1, 1}), "ranks 0 and 1 have different optimizers");
  check_mismatch(unrelated({2, 2}), "ranks 0 and 1 have different optimizers");
  check_mismatch(unrelated({1, 2}), "rank 1 has an optimizer of 2 ranks, but rank 0 has one of 1");
}

TEST_CASE("recover: impossible step numbers and duplicate ranks are named", "[unit][recover]") {
  world::Case c = world::on_mesh({2});
  world::add(c, "w", {4, 4}, {kRows});
  std::vector<std::optional<Error>> steps(2), twice(2);
  std::vector<Optimizer*> all(2);
  ThreadGroup meeting(2);
  world::on_ranks(2, [&](Comm& comm) {
    const auto me = static_cast<size_t>(comm.rank());
    world::Rank rank(c, comm);
    StepReport report;
    rank.step(0, report);
    all[me] = &rank.optimizer();
    if (me == 1) rank.optimizer().set_steps(5);
    HostComm survivors(meeting.transport(comm.rank()));
    steps[me] = error_of_recover(rank.optimizer(), survivors);
    char both[2], here = 1;
    survivors.allgather(&here, both, 1);
    twice[me] = error_of_recover(*all[0], survivors);  // recover() only reads the optimizer
    survivors.allgather(&here, both, 1);
  });
  check_mismatch(steps,
                 "rank 0 of the optimizer has committed 1 steps and rank 1 5, but rank 0 can only "
                 "roll forward by the step that failed");
  check_mismatch(twice, "ranks 0 and 1 were both rank 0 of the optimizer");
}

TEST_CASE("recover: too few ranks are rejected, unless the policy allows it", "[unit][recover]") {
  world::Case c = world::on_mesh({4});
  world::add(c, "w", {8, 4}, {{PlacementKind::kShard, 0, 1}});
  ThreadGroup with_lowest(2), without(2), single(1);
  world::on_each(c, [&](world::Rank& rank, Comm& comm) {
    StepReport report;
    rank.step(0, report);
    const bool lowest = comm.rank() % 2 == 0;  // one half is ranks 0 and 2, the other 1 and 3
    HostComm half((lowest ? with_lowest : without).transport(comm.rank() / 2));
    const auto status = [&](Comm& survivors, SurvivorPolicy policy) {
      try {
        const Recovery done = rank.optimizer().recover(survivors, policy);
        return done.outcome == Recovery::Outcome::kNone && done.steps == 1 ? Status::kOk
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
    // The ranks pass different policies.
    RANK_CHECK(status(half, comm.rank() < 2 ? SurvivorPolicy::kAny : SurvivorPolicy::kMajority) ==
               Status::kMismatch);
    if (comm.rank() == 0) {
      HostComm one(single.transport(0));
      RANK_CHECK(status(one, SurvivorPolicy::kMajority) == Status::kUndecided);
      RANK_CHECK(status(one, SurvivorPolicy::kAny) == Status::kOk);
    }
    RANK_CHECK(rank.step(1, report) == Status::kOk);  // the optimizer can still be used
  });
}

TEST_CASE("recover: a usable optimizer is unchanged and continues", "[unit][recover]") {
  world::on_each(three_ranks(), [](world::Rank& rank, Comm& comm) {
    StepReport report;
    for (int step = 0; step < 2; ++step) {
      rank.step(step, report);
      const Recovery settled = rank.optimizer().recover(comm);
      RANK_CHECK(settled.outcome == Settled::kNone && settled.steps == step + 1);
    }
  });
}

TEST_CASE("recover: the C ABI, and arguments that it rejects", "[unit][abi][recover]") {
  muonrt_comm_t* comm = nullptr;
  REQUIRE(muonrt_comm_create_self(&comm) == MUONRT_OK);
  OneMatrix trainer;
  REQUIRE(trainer.create(comm) == MUONRT_OK);
  REQUIRE(trainer.step() == MUONRT_OK);
  muonrt_recovery_t recovery;
  muonrt_recovery_init(&recovery);
  muonrt_recovery_init(nullptr);
  CHECK(recovery.step == 0);
  CHECK(recovery.survivor_policy == MUONRT_SURVIVORS_MAJORITY);
  const auto rejects = [&](muonrt_optimizer_t* optimizer, muonrt_comm_t* survivors,
                           const char* text) {
    CHECK(muonrt_optimizer_recover(optimizer, survivors, &recovery) ==
          MUONRT_ERROR_INVALID_ARGUMENT);
    CHECK_THAT(muonrt_get_last_error(), Catch::Contains(text));
  };
  rejects(nullptr, comm, "muonrt_optimizer_recover: optimizer is NULL");
  rejects(trainer.optimizer, nullptr, "survivors is NULL");
  recovery.survivor_policy = 2;
  rejects(trainer.optimizer, comm, "survivor_policy is 2, but must be 0 (majority) or 1 (any)");
  recovery.survivor_policy = MUONRT_SURVIVORS_ANY;
  recovery.reserved = 1;
  rejects(trainer.optimizer, comm, "recovery: reserved is 1");
  recovery.reserved = 0;
  CHECK(muonrt_optimizer_recover(trainer.optimizer, comm, &recovery) == MUONRT_OK);
  CHECK(recovery.outcome == MUONRT_RECOVERY_NONE);
  CHECK(recovery.step == 1);
  CHECK(muonrt_optimizer_recover(trainer.optimizer, comm, nullptr) == MUONRT_OK);
  recovery.struct_size = 3;
  rejects(trainer.optimizer, comm, "recovery: struct_size is 3");
  struct {
    muonrt_recovery_t known;
    int32_t unknown[2];
  } newer = {};
  muonrt_recovery_init(&newer.known);
  newer.known.struct_size = sizeof newer;
  CHECK(muonrt_optimizer_recover(trainer.optimizer, comm, &newer.known) == MUONRT_OK);
  newer.unknown[1] = 1;
  CHECK(muonrt_optimizer_recover(trainer.optimizer, comm, &newer.known) ==
        MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK_THAT(muonrt_get_last_error(), Catch::Contains("use a newer library"));
  CHECK(trainer.step() == MUONRT_OK);
  trainer.destroy();
  muonrt_comm_destroy(comm);
}
