#include <catch2/catch.hpp>
#include <cstring>

#include "comm/host_comm.hpp"
#include "support/attempts.hpp"
#include "support/rank_check.hpp"
#include "support/wrapped_device.hpp"

// Tests a rank that dies, or messages that are lost, at each operation of a step. On every rank,
// the call must return in bounded time. Nothing may be committed before the vote, and an optimizer
// must remain unusable after it has failed.

using namespace muonrt;

namespace {

constexpr int kRanks = 3;
constexpr int64_t kTimeoutMs = 300;

world::Case small_case(CommitMode commit) {
  world::Case c = world::on_mesh({kRanks});
  c.settings.commit = commit;
  c.settings.chunk_bytes = 2 * 6 * 5;
  c.settings.timeout_ms = kTimeoutMs;
  const Placement rows{PlacementKind::kShard, 0, 1};
  for (int i = 0; i < 4; ++i) world::add(c, cat("w", i), {6, 5}, {rows});
  world::add(c, "bias", {7}, {rows});
  return c;
}

struct Seen {
  world::Ended step, next;
  bool changed_whole = false;
};

/// Runs three steps. The fault occurs in the second step.
std::vector<Seen> run(CommitMode commit, const std::function<ThreadFaults()>& make_faults) {
  world::Case c = small_case(commit);
  c.steps = 2;
  const world::Tensors after = world::run(c).tensors;
  return world::on_each(
      c,
      [&](world::Rank& rank, Comm& comm) {
        StepReport report;
        rank.step(0, report);
        // The fault belongs to the second step, so all ranks must have completed the vote of the
        // first step.
        char all[kRanks];
        const char here = 1;
        comm.allgather(&here, all, 1);
        Seen mine;
        mine.step = world::attempt(rank, 1);
        mine.changed_whole = rank.tensors(after) == after;
        mine.next = world::attempt(rank, 2);
        return mine;
      },
      world::host_device, make_faults());
}

/// Returns the number of exchanges of rank 1 in a step.
int64_t exchanges_of_a_step(CommitMode commit) {
  return world::on_each(small_case(commit), [](world::Rank& rank, Comm&) {
    StepReport report;
    rank.step(0, report);
    return rank.optimizer().comm().exchanges();
  })[1];
}

void check_atomic(const std::vector<Seen>& seen, int dead) {
  bool anyone_committed = false;
  for (const Seen& s : seen) anyone_committed = anyone_committed || !s.step.unchanged;
  for (int r = 0; r < kRanks; ++r) {
    const Seen& s = seen[static_cast<size_t>(r)];
    const Status status = s.step.status;
    INFO("rank " << r << " status " << static_cast<int>(status));
    CHECK((s.step.unchanged || s.changed_whole));
    if (status == Status::kOk) {
      CHECK(s.changed_whole);
      continue;
    }
    const std::vector<Status> known = {Status::kTimeout, Status::kComm, Status::kAborted,
                                       Status::kUndecided, Status::kMismatch};
    CHECK(std::find(known.begin(), known.end(), status) != known.end());
    CHECK(s.step.unchanged);
    // A rank returns UNDECIDED if it cannot know whether another rank has committed.
    if (anyone_committed && r != dead) CHECK(status == Status::kUndecided);
    CHECK(s.next.status == Status::kInvalidState);
    CHECK(s.next.says("unusable"));
  }
}

}  // namespace

TEST_CASE("faults: if a rank dies at any exchange of a step, no rank changes",
          "[unit][optimizer][tsan]") {
  const int64_t exchanges = exchanges_of_a_step(CommitMode::kAtomic);
  REQUIRE(exchanges >= 4);
  for (int64_t k = 0; k < exchanges; ++k) {
    for (const bool silent : {true, false}) {
      INFO("exchange " << k << (silent ? ", dead" : ", an error that is published"));
      const auto seen = run(CommitMode::kAtomic, [&] {
        ThreadFaults f;
        f.kills.push_back({1, OperationKind::kExchange, exchanges + k, silent, 1});
        return f;
      });
      check_atomic(seen, 1);
      for (const Seen& s : seen) CHECK(s.step.unchanged);
    }
  }
}

TEST_CASE("faults: if a rank dies during the vote, no rank commits", "[unit][optimizer][tsan]") {
  for (int dead = 0; dead < kRanks; ++dead) {
    for (const bool silent : {true, false}) {
      INFO("rank " << dead << " dies in the vote");
      const auto seen = run(CommitMode::kAtomic, [&] {
        ThreadFaults f;
        f.kills.push_back({dead, OperationKind::kReduceSum, 1, silent, 1});
        return f;
      });
      check_atomic(seen, dead);
      // The dead rank has not voted, so no rank may commit.
      for (const Seen& s : seen) CHECK(s.step.unchanged);
    }
  }
}

TEST_CASE("faults: a lost vote is never consent", "[unit][optimizer]") {
  for (int from = 0; from < kRanks; ++from) {
    INFO("the messages of rank " << from << " in the vote are lost");
    const auto seen = run(CommitMode::kAtomic, [&] {
      ThreadFaults f;
      f.drops.push_back({from, OperationKind::kReduceSum, 1, ThreadFaults::kAny, 1});
      return f;
    });
    check_atomic(seen, -1);
    for (int r = 0; r < kRanks; ++r) {
      if (r != from) CHECK(seen[static_cast<size_t>(r)].step.unchanged);
    }
  }
}

TEST_CASE("faults: an eager step that loses a rank after its vote returns TORN",
          "[unit][optimizer]") {
  const int64_t exchanges = exchanges_of_a_step(CommitMode::kEager);
  const auto seen = run(CommitMode::kEager, [&] {
    ThreadFaults f;
    f.kills.push_back({1, OperationKind::kExchange, exchanges + exchanges - 1, true, 1});
    return f;
  });
  for (const Seen& s : seen) {
    CHECK(s.step.status == Status::kTorn);
    CHECK(s.next.status == Status::kInvalidState);
  }
}

namespace {

/// Runs a given task on the stream before each call to one op.
class PlantedOps : public wrapped::Ops {
 public:
  enum class Where { kNowhere, kPack, kCommit, kHash };
  struct Plan {
    Where where = Where::kNowhere;
    std::function<void()> task;
  };
  PlantedOps(muonrt::Ops& inner, const Plan& plan) : wrapped::Ops(inner), plan_(plan) {}
  void pack_direction(Stream& s, std::span<const ShardBlock> blocks, const StepTables& tables,
                      TypedBuffer message, Findings* findings) override {
    run_at(Where::kPack, s);
    inner_.pack_direction(s, blocks, tables, message, findings);
  }
  void commit_adamw(Stream& s, std::span<const int32_t> whole, std::span<const ShardBlock> blocks,
                    const StepTables& tables, const CommitCondition& vote_sum) override {
    run_at(Where::kCommit, s);
    inner_.commit_adamw(s, whole, blocks, tables, vote_sum);
  }
  void hash_memory(Stream& s, const void* memory, int64_t bytes, uint64_t* sum) override {
    run_at(Where::kHash, s);
    inner_.hash_memory(s, memory, bytes, sum);
  }

 private:
  void run_at(Where place, Stream& s) {
    if (plan_.where == place)
      host::host_stream(s).enqueue(host::Task([task = &plan_.task] { (*task)(); }));
  }

  const Plan& plan_;
};
using Where = PlantedOps::Where;

}  // namespace

TEST_CASE("faults: a rank whose local pass fails does not send an old vote", "[unit][optimizer]") {
  for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
    const world::Case c = small_case(commit);
    std::vector<world::Ended> ends(kRanks);
    world::on_ranks(kRanks, [&](Comm& comm) {
      PlantedOps::Plan plan;
      plan.task = [] { throw Error(Status::kOutOfMemory, "planted; nothing"); };
      world::Rank rank(c, comm, [&](const OptimizerSettings& s) {
        return wrapped::with<PlantedOps>(world::host_device(s), plan);
      });
      // After a skipped step, the memory of the other ranks still contains a consenting vote for
      // the same step.
      StepReport report;
      rank.fill_gradients(0);
      if (comm.rank() == 0) std::memset(rank.grad(0).data(), 0xff, 4);
      RANK_CHECK(rank.step_only(0, report) == Status::kSkipped);
      if (comm.rank() == 1) plan.where = Where::kPack;
      ends[static_cast<size_t>(comm.rank())] = world::attempt(rank, 0);
    });
    for (const world::Ended& end : ends) {
      CHECK(end.status != Status::kOk);
      if (commit == CommitMode::kAtomic) CHECK(end.unchanged);
      if (commit == CommitMode::kEager) CHECK(end.status == Status::kTorn);
    }
  }
}

TEST_CASE("faults: a communicator that fails after a step's last vote leaves the step committed",
          "[unit][optimizer]") {
  for (const auto& [commit, place] : {std::pair{CommitMode::kAtomic, Where::kCommit},
                                      {CommitMode::kAtomic, Where::kHash},
                                      {CommitMode::kEager, Where::kHash}}) {
    const bool eager = commit == CommitMode::kEager;
    world::Case c = small_case(commit);
    c.settings.health_every = 1;
    c.params.back().placements = {{PlacementKind::kReplicate, 0, 1}};
    std::vector<Seen> seen(kRanks);
    world::on_ranks(kRanks, [&, place = place](Comm& comm) {
      PlantedOps::Plan plan;
      plan.task = [&] {
        dynamic_cast<HostComm&>(comm).transport().abort_with_duplicates(Status::kAborted,
                                                                        "planted");
      };
      world::Rank rank(c, comm, [&](const OptimizerSettings& s) {
        return wrapped::with<PlantedOps>(world::host_device(s), plan);
      });
      StepReport report;
      RANK_CHECK(rank.step(0, report) == Status::kOk);
      RANK_CHECK(report.has_health);
      if (comm.rank() == 1) plan.where = place;
      Seen& mine = seen[static_cast<size_t>(comm.rank())];
      mine.step = world::attempt(rank, 1);
      mine.next = world::attempt(rank, 2);
    });
    for (int r = 0; r < kRanks; ++r) {
      const auto& [step, next, whole] = seen[static_cast<size_t>(r)];
      INFO("rank " << r << (eager ? ", eager, " : ", atomic, ") << status_name(step.status) << ", "
                   << next.message);
      // The other ranks may not have received the sum of the last vote yet. Eager steps commit
      // before this vote, so they are then torn.
      const bool in_doubt = r != 1 && step.status == (eager ? Status::kTorn : Status::kUndecided);
      CHECK((in_doubt || (step.status == Status::kOk && step.report.step == 2)));
      CHECK((in_doubt || !step.unchanged));
      CHECK(next.status == Status::kInvalidState);
      CHECK(next.says("planted"));
    }
    CHECK_FALSE(seen[1].step.report.has_health);
  }
}

TEST_CASE("faults: update counts that differ between ranks return MISMATCH and are named",
          "[unit][optimizer]") {
  world::Case c = small_case(CommitMode::kAtomic);
  c.arguments = [&](StepArgs& s, int64_t step, int) {
    if (step == 0) s.inactive_params = {4};
  };
  const auto ends = world::on_each(c, [](world::Rank& rank, Comm& comm) {
    StepReport report;
    RANK_CHECK(rank.step(0, report) == Status::kOk);
    // This call does not change the step number, but the update count now includes the step in
    // which the parameter was inactive.
    if (comm.rank() == 1) rank.optimizer().set_steps(1);
    return world::attempt(rank, 1);
  });
  for (const world::Ended& end : ends) {
    CHECK(end.status == Status::kMismatch);
    CHECK(end.unchanged);
    CHECK_THAT(end.message, Catch::Contains("param 'bias': update count"));
  }
}
