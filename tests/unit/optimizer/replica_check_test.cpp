#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>

#include "support/attempts.hpp"
#include "support/forwarding_comm.hpp"
#include "support/rank_check.hpp"

// Tests that a step detects and names replicas that differ, before it commits anything.

using namespace muonrt;
using Catch::Contains;

namespace {

const Placement kWhole{PlacementKind::kReplicate, 0, 1}, kRows{PlacementKind::kShard, 0, 1},
    kPartialGrads{PlacementKind::kPartial, 0, 1};
enum : int64_t { kMatrix, kNorm, kOther };

/// Returns a case with a matrix and two vectors of equal shape, all replicated over the first mesh
/// dimension.
world::Case replicated(std::vector<int64_t> mesh, ReplicaCheck check = ReplicaCheck::kFirst) {
  const bool sharded = mesh.size() > 1;
  world::Case c = world::on_mesh(std::move(mesh));
  std::vector<Placement> placements = {kWhole};
  if (sharded) placements.push_back(kRows);
  world::add(c, "matrix", {6, 4}, placements);
  world::add(c, "norm", {8}, placements);
  world::add(c, "other", {8}, placements);
  c.settings.replica_check = check;
  return c;
}

using Plant = std::function<void(world::Rank&, int rank)>;

Plant flip_gradient(int64_t param, int where) {
  return [=](world::Rank& rank, int me) {
    if (me == where) rank.grad(param).at(5) ^= 1;
  };
}

/// Runs a step. If the step is rejected, checks that it changes nothing and returns its message. If
/// the step is committed or skipped, returns "".
std::string step(world::Rank& rank, int me, int64_t number, const Plant& plant = {}) {
  rank.fill_gradients(number);
  if (plant) plant(rank, me);
  const world::Ended end = world::attempt_only(rank, number);
  RANK_CHECK(end.message.empty() || (end.status == Status::kMismatch && end.unchanged));
  return end.message;
}

/// Returns the messages of the steps that `script(rank, number)` runs, and checks that all ranks
/// have the same messages.
template <class Script>
std::vector<std::string> messages(const world::Case& c, Script script) {
  const auto all = world::on_each(c, [&](world::Rank& rank, Comm& comm) {
    const std::vector<std::string> mine = script(rank, comm.rank());
    return mine;
  });
  for (const auto& mine : all) CHECK(mine == all[0]);
  return all[0];
}

struct Gathered {
  int64_t calls = 0, most_bytes = 0;
};
class CountingComm final : public ForwardingComm {
 public:
  CountingComm(std::unique_ptr<Comm> inner, Gathered& gathered)
      : ForwardingComm(std::move(inner)), gathered_(gathered) {}
  void allgather(const void* own, void* all, int64_t bytes) override {
    ++gathered_.calls;
    gathered_.most_bytes = std::max(gathered_.most_bytes, bytes);
    inner_->allgather(own, all, bytes);
  }
  std::unique_ptr<Comm> duplicate() override {
    return std::make_unique<CountingComm>(inner_->duplicate(), gathered_);
  }

 private:
  Gathered& gathered_;
};

}  // namespace

TEST_CASE("replica check: a gradient that one rank did not reduce is named by parameter and rank",
          "[unit][optimizer][tsan]") {
  struct Row {
    world::Case c;
    int64_t param;
    int rank;
    std::string says;
  };
  std::vector<Row> rows;
  for (const int ranks : {2, 3, 4}) {
    for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
      world::Case c = replicated({ranks});
      c.settings.commit = commit;
      for (const int64_t param : {kMatrix, kNorm})
        rows.push_back({c, param, ranks - 1,
                        cat("param '", param == kMatrix ? "matrix" : "norm",
                            "': its gradient on rank ", ranks - 1, " differs from rank 0")});
    }
  }
  // Replica 0 is the reference, so if it differs, the error names all other replicas. If the
  // parameter is sharded, the error names the replica of the shard that differs.
  rows.push_back({replicated({4}), kOther, 0,
                  "param 'other': its gradient on ranks 1, 2, 3 differs from rank 0"});
  rows.push_back(
      {replicated({2, 2}), kNorm, 3, "param 'norm': its gradient on rank 3 differs from rank 1"});
  // There are two partial gradients. Ranks 0 and 1 hold the first one, and ranks 2 and 3 the second
  // one.
  world::Case sums = world::on_mesh({2, 2});
  world::add(sums, "sum", {6, 4}, {kPartialGrads, kWhole}).partial_grads = 2;
  rows.push_back({sums, 0, 3, "param 'sum': its gradient on rank 3 differs from rank 2"});
  for (const Row& row : rows) {
    const auto errors = messages(row.c, [&](world::Rank& rank, int me) {
      std::vector<std::string> out = {step(rank, me, 0, flip_gradient(row.param, row.rank)),
                                      step(rank, me, 0)};
      RANK_CHECK(rank.optimizer().steps() == 1);  // the optimizer now uses the reduced gradient
      return out;
    });
    CHECK_THAT(errors[0], Contains(row.says) && Contains("reduce the gradient"));
    CHECK(errors[1].empty());
  }
}

TEST_CASE("replica check: gradients of two parameters that are swapped do not cancel",
          "[unit][optimizer]") {
  const auto errors = messages(replicated({2}), [](world::Rank& rank, int me) {
    const Plant swap = [](world::Rank& r, int number) {
      if (number != 1) return;
      std::swap(r.grad(kNorm),
                r.grad(kOther));  // swaps the buffers, which must be bound again
      for (const int64_t p : {kNorm, kOther}) r.optimizer().set_grad(p, r.grad(p).data());
    };
    return std::vector{step(rank, me, 0, swap)};
  });
  CHECK_THAT(errors[0], Contains("its gradient on rank 1 differs from rank 0"));
}

TEST_CASE("replica check: weights and their state are compared", "[unit][optimizer]") {
  for (const bool momentum : {false, true}) {
    const auto errors = messages(replicated({3}), [&](world::Rank& rank, int me) {
      auto* const at = momentum ? static_cast<unsigned char*>(
                                      rank.optimizer().state(kNorm, StateKind::kMomentum).data)
                                : rank.data(kNorm).data();
      std::vector<std::string> out;
      for (int time = 0; time < 2; ++time) {
        if (me == 1) at[2] ^= 4;
        out.push_back(step(rank, me, 0));
      }
      return out;
    });
    CHECK_THAT(errors[0],
               Contains(cat("param 'norm': its ",
                            momentum ? "momentum on rank 1 differs" : "weights on rank 1 differ",
                            " from rank 0")) &&
                   Contains("copy it from one of the ranks"));
    CHECK(errors[1].empty());
  }
}

TEST_CASE("replica check: first, every or off says which steps compare", "[unit][optimizer]") {
  for (const ReplicaCheck check :
       {ReplicaCheck::kFirst, ReplicaCheck::kEvery, ReplicaCheck::kOff}) {
    const auto errors = messages(replicated({2}, check), [&](world::Rank& rank, int me) {
      std::vector<std::string> out = {step(rank, me, 0, flip_gradient(kNorm, 1))};
      if (check != ReplicaCheck::kOff) out.push_back(step(rank, me, 0));
      out.push_back(step(rank, me, 1, flip_gradient(kNorm, 1)));
      return out;
    });
    CHECK(errors[0].empty() == (check == ReplicaCheck::kOff));
    CHECK(errors.back().empty() == (check != ReplicaCheck::kEvery));
  }
}

TEST_CASE("replica check: it stays due after a skipped step", "[unit][optimizer]") {
  const auto errors = messages(replicated({2}), [](world::Rank& rank, int me) {
    std::vector<std::string> out = {step(rank, me, 0, [](world::Rank& r, int) {
      r.grad(kMatrix).at(2) = r.grad(kMatrix).at(3) = 0xff;  // NaN
    })};
    RANK_CHECK(rank.optimizer().steps() == 0);
    out.push_back(step(rank, me, 0, flip_gradient(kNorm, 1)));
    return out;
  });
  CHECK(errors[0].empty());
  CHECK_THAT(errors[1], Contains("param 'norm'"));
}

TEST_CASE("replica check: a gradient is compared in the first step in which it is active",
          "[unit][optimizer]") {
  world::Case c = replicated({2});
  c.inactive_params = {{kNorm}, {}};
  const auto errors = messages(c, [](world::Rank& rank, int me) {
    return std::vector{step(rank, me, 0, flip_gradient(kNorm, 1)),
                       step(rank, me, 1, flip_gradient(kNorm, 1))};
  });
  CHECK(errors[0].empty());
  CHECK_THAT(errors[1], Contains("param 'norm': its gradient on rank 1"));
}

TEST_CASE("replica check: a resume, or a reset of masters, makes it due again",
          "[unit][optimizer]") {
  for (const bool resume : {true, false}) {
    for (const bool everywhere : {true, false}) {
      const auto errors = messages(replicated({2}), [&](world::Rank& rank, int me) {
        std::vector<std::string> out = {step(rank, me, 0)};
        if (!resume && everywhere && me == 1) rank.data(kNorm).at(2) ^= 4;
        if (resume && (everywhere || me == 1)) rank.optimizer().set_steps(1);
        if (!resume && (everywhere || me == 1)) rank.optimizer().reset_masters({kNorm});
        // Resetting master weights does not cause another check of gradients.
        out.push_back(step(rank, me, 1, everywhere ? flip_gradient(kOther, 1) : Plant{}));
        return out;
      });
      CHECK(errors[0].empty());
      CHECK_THAT(errors[1],
                 Contains(!everywhere ? "_set_update_count on every rank) is nothing on rank 0"
                          : resume    ? "param 'other': its gradient on rank 1"
                                      : "param 'norm': its weights on rank 1 differ from rank 0"));
    }
  }
}

TEST_CASE("replica check: one of a thousand parameters is found with few messages",
          "[unit][optimizer]") {
  world::Case c = replicated({3});
  for (int i = 0; i < 1000; ++i) world::add(c, cat("vector ", i), {8}, {kWhole});
  world::on_ranks(3, [&](Comm& comm) {
    Gathered gathered;
    CountingComm counting(comm.duplicate(), gathered);
    world::Rank rank(c, counting);
    rank.fill_gradients(0);
    flip_gradient(kOther + 1 + 700, 2)(rank, comm.rank());
    gathered = {};
    const world::Ended end = world::attempt_only(rank, 0);
    RANK_CHECK(end.says("param 'vector 700': its gradient on rank 2 differs from rank"));
    RANK_CHECK(gathered.most_bytes <= kExplanationBytes);
    // The calls gather the errors of all ranks, the hashes of the ten steps of a binary search, and
    // the hashes of the parameter.
    RANK_CHECK(gathered.calls >= 10 && gathered.calls <= 16);
    gathered = {};
    StepReport report;
    rank.step(0, report);
    // Two numbers in the vote show that all replicas are equal. The only call gathers the squares
    // of the weights for the check of the first update.
    RANK_CHECK(gathered.calls == 1);
  });
}
