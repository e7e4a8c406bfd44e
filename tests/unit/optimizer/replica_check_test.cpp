#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <mutex>

#include "support/passing_comm.hpp"
#include "support/rank_check.hpp"
#include "support/world.hpp"

// Replicas that are not what they should be: found before anything is committed, and named.

using namespace muonrt;

namespace {

const Placement kWhole{PlacementKind::kReplicate, 0, 1}, kRows{PlacementKind::kShard, 0, 1},
    kAddends{PlacementKind::kPartial, 0, 1};
enum : int64_t { kMatrix, kNorm, kOther };

/// A matrix and two vectors of one shape, replicated over the first mesh dimension.
world::Case replicated(std::vector<int64_t> mesh, ReplicaCheck check = ReplicaCheck::kFirst) {
  const bool sharded = mesh.size() > 1;
  world::Case c = world::on_mesh(std::move(mesh));
  std::vector<Placement> placements = {kWhole};
  if (sharded) placements.push_back(kRows);
  c.params.push_back(world::matrix("matrix", {6, 4}, placements));
  for (const char* name : {"norm", "other"}) {
    c.params.push_back(world::matrix(name, {8}, placements));
    c.params.back().role = Role::kAdamW;
  }
  c.settings.replica_check = check;
  return c;
}

using Plant = std::function<void(world::Rank&, int rank)>;

Plant flip_gradient(int64_t param, int where) {
  return [=](world::Rank& rank, int me) {
    if (me == where) rank.grad(param).at(5) ^= 1;
  };
}

std::vector<std::vector<unsigned char>> bytes_of(world::Rank& rank) {
  std::vector<std::vector<unsigned char>> out;
  for (const int64_t p : {kMatrix, kNorm, kOther}) {
    out.push_back(rank.data(p));
    out.push_back(rank.state(p, StateKind::kMomentum));
  }
  return out;
}

/// What the ranks say of a step, the same on all; "" where it was committed or skipped. A step that
/// was refused has changed nothing.
class World {
 public:
  explicit World(world::Case of) : case_(std::move(of)) {}

  /// @param script  does steps by `step`.
  void run(const std::function<void(World&, world::Rank&, Comm&)>& script) {
    std::vector<std::vector<std::string>> all(static_cast<size_t>(case_.world));
    world::on_ranks(case_.world, [&](Comm& comm) {
      world::Rank rank(case_, comm);
      std::vector<std::string>& mine = all[static_cast<size_t>(comm.rank())];
      {
        const std::lock_guard lock(mutex_);
        told_[&comm] = &mine;
      }
      script(*this, rank, comm);
    });
    for (const auto& mine : all) CHECK(mine == all[0]);
    said = all[0];
  }
  void step(world::Rank& rank, Comm& comm, int64_t step, const Plant& plant = {}) {
    rank.fill_gradients(step);
    if (plant) plant(rank, comm.rank());
    const auto before = bytes_of(rank);
    std::string text;
    StepReport report;
    try {
      rank.step_only(step, report);
    } catch (const Error& e) {
      text = cat(status_name(e.status()), ": ", e.message());
      RANK_CHECK(e.status() == Status::kMismatch);
      RANK_CHECK(before == bytes_of(rank));
    }
    std::vector<std::string>* mine = nullptr;
    {
      const std::lock_guard lock(mutex_);
      mine = told_.at(&comm);
    }
    mine->push_back(text);
  }

  std::vector<std::string> said;  // by step

 private:
  world::Case case_;
  std::mutex mutex_;
  std::map<Comm*, std::vector<std::string>*> told_;
};

struct Gathered {
  int64_t calls = 0, most_bytes = 0;
};
class CountingComm final : public PassingComm {
 public:
  CountingComm(std::unique_ptr<Comm> inner, Gathered& gathered)
      : PassingComm(std::move(inner)), gathered_(gathered) {}
  void allgather(const void* mine, void* all, int64_t bytes) override {
    ++gathered_.calls;
    gathered_.most_bytes = std::max(gathered_.most_bytes, bytes);
    inner_->allgather(mine, all, bytes);
  }
  std::unique_ptr<Comm> duplicate() override {
    return std::make_unique<CountingComm>(inner_->duplicate(), gathered_);
  }

 private:
  Gathered& gathered_;
};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("replica check: a gradient that one rank did not reduce is named by parameter and rank",
          "[unit][optimizer][tsan]") {
  for (const int ranks : {2, 3, 4}) {
    for (const int64_t param : {kMatrix, kNorm}) {
      for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
        world::Case c = replicated({ranks});
        c.settings.commit = commit;
        World w(c);
        w.run([&](World& on, world::Rank& rank, Comm& comm) {
          on.step(rank, comm, 0, flip_gradient(param, ranks - 1));
          on.step(rank, comm, 0);  // reduced: the optimizer goes on
          RANK_CHECK(rank.optimizer().steps() == 1);
        });
        INFO(w.said[0]);
        CHECK(has(w.said[0],
                  cat("param '", param == kMatrix ? "matrix" : "norm", "': its gradient on rank ",
                      ranks - 1, " has other bits than on rank 0")));
        CHECK(has(w.said[0], "reduce the gradient"));
        CHECK(w.said[1].empty());
      }
    }
  }
}

TEST_CASE("replica check: where the first replica differs, all others are named",
          "[unit][optimizer]") {
  World w(replicated({4}));
  w.run([&](World& on, world::Rank& rank, Comm& comm) {
    on.step(rank, comm, 0, flip_gradient(kOther, 0));
  });
  INFO(w.said[0]);
  CHECK(
      has(w.said[0], "param 'other': its gradient on ranks 1, 2, 3 has other bits than on rank 0"));
}

TEST_CASE("replica check: of replicated shards the replica of that shard is named",
          "[unit][optimizer]") {
  World w(replicated({2, 2}));
  w.run([&](World& on, world::Rank& rank, Comm& comm) {
    on.step(rank, comm, 0, flip_gradient(kNorm, 3));
    on.step(rank, comm, 0);
  });
  INFO(w.said[0]);
  CHECK(has(w.said[0], "param 'norm': its gradient on rank 3 has other bits than on rank 1"));
  CHECK(w.said[1].empty());
}

TEST_CASE("replica check: gradients of two parameters that change places do not cancel",
          "[unit][optimizer]") {
  World w(replicated({2}));
  w.run([&](World& on, world::Rank& rank, Comm& comm) {
    on.step(rank, comm, 0, [](world::Rank& r, int me) {
      if (me == 1) std::swap(r.grad(kNorm), r.grad(kOther));
      if (me == 1)  // the optimizer reads where it was told to
        for (const int64_t p : {kNorm, kOther}) r.optimizer().set_grad(p, r.grad(p).data());
    });
  });
  INFO(w.said[0]);
  CHECK(has(w.said[0], "its gradient on rank 1 has other bits than on rank 0"));
}

TEST_CASE("replica check: weights and their state are compared too", "[unit][optimizer]") {
  for (const bool momentum : {false, true}) {
    World w(replicated({3}));
    w.run([&](World& on, world::Rank& rank, Comm& comm) {
      auto* const at = momentum ? static_cast<unsigned char*>(
                                      rank.optimizer().state(kNorm, StateKind::kMomentum).data)
                                : rank.data(kNorm).data();
      if (comm.rank() == 1) at[2] ^= 4;
      on.step(rank, comm, 0);
      if (comm.rank() == 1) at[2] ^= 4;
      on.step(rank, comm, 0);
    });
    INFO(w.said[0]);
    CHECK(has(w.said[0], cat("param 'norm': its ",
                             momentum ? "momentum on rank 1 has" : "weights on rank 1 have",
                             " other bits than on rank 0")));
    CHECK(has(w.said[0], "copy it from one of them"));
    CHECK(w.said[1].empty());
  }
}

TEST_CASE("replica check: first, every or off says which steps compare", "[unit][optimizer]") {
  for (const ReplicaCheck check :
       {ReplicaCheck::kFirst, ReplicaCheck::kEvery, ReplicaCheck::kOff}) {
    World w(replicated({2}, check));
    w.run([&](World& on, world::Rank& rank, Comm& comm) {
      on.step(rank, comm, 0, flip_gradient(kNorm, 1));
      if (check != ReplicaCheck::kOff) on.step(rank, comm, 0);
      on.step(rank, comm, 1, flip_gradient(kNorm, 1));
    });
    CHECK(w.said[0].empty() == (check == ReplicaCheck::kOff));
    CHECK(w.said.back().empty() == (check != ReplicaCheck::kEvery));
  }
}

TEST_CASE("replica check: a skipped step does not use it up", "[unit][optimizer]") {
  World w(replicated({2}));
  w.run([&](World& on, world::Rank& rank, Comm& comm) {
    on.step(rank, comm, 0, [](world::Rank& r, int) {
      r.grad(kMatrix).at(2) = r.grad(kMatrix).at(3) = 0xff;  // NaN
    });
    RANK_CHECK(rank.optimizer().steps() == 0);
    on.step(rank, comm, 0, flip_gradient(kNorm, 1));
    on.step(rank, comm, 0);
  });
  CHECK(w.said[0].empty());
  CHECK(has(w.said[1], "param 'norm'"));
  CHECK(w.said[2].empty());
}

TEST_CASE("replica check: a gradient that sat out is compared when it first takes part",
          "[unit][optimizer]") {
  world::Case c = replicated({2});
  c.without_grad = {{kNorm}, {}};
  World w(c);
  w.run([&](World& on, world::Rank& rank, Comm& comm) {
    on.step(rank, comm, 0, flip_gradient(kNorm, 1));
    on.step(rank, comm, 1, flip_gradient(kNorm, 1));
  });
  CHECK(w.said[0].empty());
  CHECK(has(w.said[1], "param 'norm': its gradient on rank 1"));
}

TEST_CASE("replica check: a resume makes it due again, on every rank or on none",
          "[unit][optimizer]") {
  for (const bool everywhere : {true, false}) {
    World w(replicated({2}));
    w.run([&](World& on, world::Rank& rank, Comm& comm) {
      on.step(rank, comm, 0);
      if (everywhere || comm.rank() == 1) rank.optimizer().set_steps(1);
      on.step(rank, comm, 1, everywhere ? flip_gradient(kOther, 1) : Plant{});
    });
    INFO(w.said[1]);
    CHECK(w.said[0].empty());
    CHECK(has(w.said[1], everywhere ? "param 'other': its gradient on rank 1"
                                    : "_set_updates on every rank) is nothing on rank 0"));
  }
}

TEST_CASE("replica check: weights that were taken are compared, on every rank or on none",
          "[unit][optimizer]") {
  for (const bool everywhere : {true, false}) {
    World w(replicated({2}));
    w.run([&](World& on, world::Rank& rank, Comm& comm) {
      on.step(rank, comm, 0);
      if (everywhere && comm.rank() == 1) rank.data(kNorm).at(2) ^= 4;
      if (everywhere || comm.rank() == 1) rank.optimizer().take_params({kNorm});
      on.step(rank, comm, 1, flip_gradient(kNorm, 1));  // which is not compared again
    });
    INFO(w.said[1]);
    CHECK(w.said[0].empty());
    CHECK(has(w.said[1], everywhere ? "param 'norm': its weights on rank 1 have other bits"
                                    : "_set_updates on every rank) is nothing on rank 0"));
  }
}

TEST_CASE("replica check: addends of a gradient differ, and equal addends are compared",
          "[unit][optimizer]") {
  // Two addends, each held by two ranks: ranks 0 and 1, 2 and 3.
  world::Case c = world::on_mesh({2, 2});
  c.params.push_back(world::matrix("sum", {6, 4}, {kAddends, kWhole}));
  c.params.back().addends = 2;
  for (const char* name : {"norm", "other"}) {
    c.params.push_back(world::matrix(name, {8}, {kWhole, kWhole}));
    c.params.back().role = Role::kAdamW;
  }
  World w(c);
  w.run([&](World& on, world::Rank& rank, Comm& comm) {
    on.step(rank, comm, 0, flip_gradient(0, 3));
    on.step(rank, comm, 0);
  });
  INFO(w.said[0]);
  CHECK(has(w.said[0], "param 'sum': its gradient on rank 3 has other bits than on rank 2"));
  CHECK(w.said[1].empty());
}

TEST_CASE("replica check: of a thousand parameters one is found in few words of bounded size",
          "[unit][optimizer]") {
  world::Case c = replicated({3});
  for (int i = 0; i < 1000; ++i) {
    c.params.push_back(world::matrix(cat("vector ", i), {8}, {kWhole}));
    c.params.back().role = Role::kAdamW;
  }
  world::on_ranks(3, [&](Comm& comm) {
    Gathered gathered;
    CountingComm counting(comm.duplicate(), gathered);
    world::Rank rank(c, counting);
    rank.fill_gradients(0);
    flip_gradient(kOther + 1 + 700, 2)(rank, comm.rank());
    gathered = {};
    StepReport report;
    std::string text;
    try {
      rank.step_only(0, report);
    } catch (const Error& e) {
      text = e.message();
    }
    RANK_CHECK(has(text, "param 'vector 700': its gradient on rank 2 has other bits"));
    RANK_CHECK(gathered.most_bytes <= kExplanationBytes);
    // Halving takes ten; then its words, and what is asked before: bad arguments.
    RANK_CHECK(gathered.calls >= 10 && gathered.calls <= 16);
    gathered = {};
    rank.fill_gradients(0);
    rank.step_only(0, report);
    RANK_CHECK(gathered.calls == 0);  // where all is equal, two words of the ballot say so
  });
}
