#include <catch2/catch.hpp>
#include <cstring>
#include <mutex>

#include "comm/host_comm.hpp"
#include "support/rank_check.hpp"
#include "support/world.hpp"
#include "support/wrapped_device.hpp"

// A rank dies, or messages are lost, at every operation of a step in turn. Every rank's call ends
// in bounded time; nothing is committed unless the vote was reached; what failed stays failed.

using namespace muonrt;

namespace {

constexpr int kRanks = 3;
constexpr int64_t kTimeoutMs = 300;

world::Case small_case(CommitMode commit) {
  world::Case c;
  c.mesh = {kRanks};
  c.world = kRanks;
  c.settings.commit = commit;
  c.settings.chunk_bytes = 2 * 6 * 5;
  c.settings.timeout_ms = kTimeoutMs;
  for (int i = 0; i < 4; ++i) {
    world::Param p;
    p.name = cat("w", i);
    p.shape = {6, 5};
    p.placements = {{PlacementKind::kShard, 0, 1}};
    c.params.push_back(p);
  }
  world::Param p;
  p.name = "bias";
  p.shape = {7};
  p.role = Role::kAdamW;
  p.placements = {{PlacementKind::kShard, 0, 1}};
  c.params.push_back(p);
  return c;
}

std::vector<std::vector<unsigned char>> bytes_of(world::Rank& rank, size_t params) {
  std::vector<std::vector<unsigned char>> out;
  for (size_t i = 0; i < params; ++i) {
    out.push_back(rank.data(static_cast<int64_t>(i)));
    out.push_back(rank.state(static_cast<int64_t>(i), StateKind::kMomentum));
  }
  return out;
}

struct Seen {
  Status status = Status::kOk;
  bool unchanged = false, changed_whole = false;
  Status next = Status::kOk;
  std::string next_message;
};

/// Runs two steps; the fault strikes in the second.
std::vector<Seen> run(CommitMode commit, const std::function<ThreadFaults()>& make_faults) {
  const world::Case c = small_case(commit);
  std::vector<Seen> seen(kRanks);
  world::Case two = c;
  two.steps = 2;
  const world::Tensors after = world::run(two).tensors;
  world::on_ranks(
      kRanks,
      [&](Comm& comm) {
        Seen& mine = seen[static_cast<size_t>(comm.rank())];
        world::Rank rank(c, comm);
        StepReport report;
        rank.step(0, report);
        // The fault is the second step's: no rank may still be inside the first one's vote.
        char all[kRanks];
        const char here = 1;
        comm.allgather(&here, all, 1);
        const auto before = bytes_of(rank, c.params.size());
        try {
          mine.status = rank.step(1, report);
        } catch (const Error& e) {
          mine.status = e.status();
        }
        mine.unchanged = before == bytes_of(rank, c.params.size());
        mine.changed_whole = rank.tensors(after) == after;
        try {
          mine.next = rank.step(2, report);
        } catch (const Error& e) {
          mine.next = e.status();
          mine.next_message = e.message();
        }
      },
      make_faults());
  return seen;
}

/// Exchanges that a step takes on rank 1.
int64_t exchanges_of_a_step(CommitMode commit) {
  int64_t count = 0;
  const world::Case c = small_case(commit);
  world::on_ranks(kRanks, [&](Comm& comm) {
    world::Rank rank(c, comm);
    StepReport report;
    rank.step(0, report);
    if (comm.rank() == 1) count = rank.optimizer().comm().exchanges();
  });
  return count;
}

void check_atomic(const std::vector<Seen>& seen, int dead) {
  bool anyone_committed = false;
  for (const Seen& s : seen) anyone_committed = anyone_committed || !s.unchanged;
  for (int r = 0; r < kRanks; ++r) {
    const Seen& s = seen[static_cast<size_t>(r)];
    INFO("rank " << r << " status " << static_cast<int>(s.status));
    CHECK((s.unchanged || s.changed_whole));
    if (s.status == Status::kOk) {
      CHECK(s.changed_whole);
      continue;
    }
    const bool known = s.status == Status::kTimeout || s.status == Status::kComm ||
                       s.status == Status::kAborted || s.status == Status::kUndecided ||
                       s.status == Status::kMismatch;
    CHECK(known);
    CHECK(s.unchanged);
    // Who does not know whether a peer has committed says so.
    if (anyone_committed && r != dead) CHECK(s.status == Status::kUndecided);
    CHECK(s.next == Status::kInvalidState);
    CHECK(s.next_message.find("unusable") != std::string::npos);
  }
}

}  // namespace

TEST_CASE("faults: a rank that dies at any exchange of a step leaves every rank as it was",
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
      for (const Seen& s : seen) CHECK(s.unchanged);
    }
  }
}

TEST_CASE("faults: a rank that dies inside the vote commits nothing it does not say",
          "[unit][optimizer][tsan]") {
  for (int dead = 0; dead < kRanks; ++dead) {
    for (const bool silent : {true, false}) {
      INFO("rank " << dead << " dies in the vote");
      const auto seen = run(CommitMode::kAtomic, [&] {
        ThreadFaults f;
        f.kills.push_back({dead, OperationKind::kReduceSum, 1, silent, 1});
        return f;
      });
      check_atomic(seen, dead);
      // The vote's own rank never contributed, so the sum passed nowhere.
      for (const Seen& s : seen) CHECK(s.unchanged);
    }
  }
}

TEST_CASE("faults: a lost ballot is never consent", "[unit][optimizer]") {
  for (int from = 0; from < kRanks; ++from) {
    INFO("what rank " << from << " sends in the vote is lost");
    const auto seen = run(CommitMode::kAtomic, [&] {
      ThreadFaults f;
      f.drops.push_back({from, OperationKind::kReduceSum, 1, ThreadFaults::kAny, 1});
      return f;
    });
    check_atomic(seen, -1);
    for (int r = 0; r < kRanks; ++r) {
      if (r != from) CHECK(seen[static_cast<size_t>(r)].unchanged);
    }
  }
}

TEST_CASE("faults: an eager step that loses a rank after its vote says that it is torn",
          "[unit][optimizer]") {
  const int64_t exchanges = exchanges_of_a_step(CommitMode::kEager);
  const auto seen = run(CommitMode::kEager, [&] {
    ThreadFaults f;
    f.kills.push_back({1, OperationKind::kExchange, exchanges + exchanges - 1, true, 1});
    return f;
  });
  for (int r = 0; r < kRanks; ++r) {
    CHECK(seen[static_cast<size_t>(r)].status == Status::kTorn);
    CHECK(seen[static_cast<size_t>(r)].next == Status::kInvalidState);
  }
}

namespace {

/// A device whose pack fails where it is told to.
class FailingOps : public wrapped::Ops {
 public:
  FailingOps(muonrt::Ops& inner, const bool& fails) : wrapped::Ops(inner), fails_(fails) {}
  void pack_direction(Stream& s, std::span<const Piece> pieces, const StepTables& tables,
                      Wire message, Findings* findings) override {
    if (fails_) {
      dynamic_cast<host::HostStream&>(s).enqueue(
          host::Task([] { throw Error(Status::kOutOfMemory, "planted; nothing"); }));
    }
    inner_.pack_direction(s, pieces, tables, message, findings);
  }

 private:
  const bool& fails_;
};

}  // namespace

TEST_CASE("faults: a rank whose local pass fails never lends an old ballot to the vote",
          "[unit][optimizer]") {
  for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
    const world::Case c = small_case(commit);
    bool fails[kRanks] = {};
    std::vector<Seen> seen(kRanks);
    world::on_ranks(kRanks, [&](Comm& comm) {
      const auto me = static_cast<size_t>(comm.rank());
      world::Rank rank(c, comm, [&](const OptimizerSettings& s) -> std::unique_ptr<Device> {
        return std::make_unique<wrapped::Device>(
            world::host_device(s), [&](muonrt::Ops& ops) -> std::unique_ptr<muonrt::Ops> {
              return std::make_unique<FailingOps>(ops, fails[me]);
            });
      });
      StepReport report;
      // A step that is skipped leaves a consenting ballot of the same step on the other ranks.
      rank.fill_gradients(0);
      if (comm.rank() == 0) std::memset(rank.grad(0).data(), 0xff, 4);
      RANK_CHECK(rank.step_only(0, report) == Status::kSkipped);
      const auto before = bytes_of(rank, c.params.size());
      fails[me] = comm.rank() == 1;
      try {
        seen[me].status = rank.step(0, report);
      } catch (const Error& e) {
        seen[me].status = e.status();
      }
      seen[me].unchanged = before == bytes_of(rank, c.params.size());
    });
    for (const Seen& s : seen) {
      CHECK(s.status != Status::kOk);
      if (commit == CommitMode::kAtomic) CHECK(s.unchanged);
      if (commit == CommitMode::kEager) CHECK(s.status == Status::kTorn);
    }
  }
}

namespace {

/// A device that ends the communicator where it is told to: behind the vote, by a commit, or
/// behind the step, by what is measured.
class EndingOps : public wrapped::Ops {
 public:
  enum class Where { kNowhere, kCommit, kHash };
  EndingOps(muonrt::Ops& inner, const Where& where, const std::function<void()>& end)
      : wrapped::Ops(inner), where_(where), end_(end) {}
  void commit_adamw(Stream& s, std::span<const int32_t> whole, std::span<const Piece> pieces,
                    const StepTables& tables, const Verdict& verdict) override {
    end_at(Where::kCommit, s);
    inner_.commit_adamw(s, whole, pieces, tables, verdict);
  }
  void hash_memory(Stream& s, const void* memory, int64_t bytes, uint64_t* sum) override {
    end_at(Where::kHash, s);
    inner_.hash_memory(s, memory, bytes, sum);
  }

 private:
  void end_at(Where place, Stream& s) {
    if (where_ == place)
      dynamic_cast<host::HostStream&>(s).enqueue(host::Task([end = &end_] { (*end)(); }));
  }

  const Where& where_;
  const std::function<void()>& end_;
};

}  // namespace

TEST_CASE("faults: a communicator that ends behind a step's last vote leaves the step committed",
          "[unit][optimizer]") {
  using Where = EndingOps::Where;
  for (const CommitMode commit : {CommitMode::kAtomic, CommitMode::kEager}) {
    for (const Where place : {Where::kCommit, Where::kHash}) {
      if (commit == CommitMode::kEager && place == Where::kCommit)
        continue;  // before its last vote
      world::Case c = small_case(commit);
      c.settings.health_every = 1;
      c.params.back().placements = {{PlacementKind::kReplicate, 0, 1}};
      std::vector<Seen> seen(kRanks);
      std::vector<bool> measured(kRanks);
      world::on_ranks(kRanks, [&](Comm& comm) {
        const auto me = static_cast<size_t>(comm.rank());
        Where where = Where::kNowhere;
        std::function<void()> end;
        world::Rank rank(c, comm, [&](const OptimizerSettings& s) -> std::unique_ptr<Device> {
          return std::make_unique<wrapped::Device>(
              world::host_device(s), [&](muonrt::Ops& ops) -> std::unique_ptr<muonrt::Ops> {
                return std::make_unique<EndingOps>(ops, where, end);
              });
        });
        end = [&] {
          dynamic_cast<HostComm&>(comm).transport().abort_family(Status::kAborted, "planted");
        };
        StepReport report;
        RANK_CHECK(rank.step(0, report) == Status::kOk);
        RANK_CHECK(report.health);
        const auto before = bytes_of(rank, c.params.size());
        where = comm.rank() == 1 ? place : Where::kNowhere;
        try {
          seen[me].status = rank.step(1, report);
          RANK_CHECK(report.step == 2);
          measured[me] = report.health;
        } catch (const Error& e) {
          seen[me].status = e.status();
        }
        seen[me].changed_whole = before != bytes_of(rank, c.params.size());
        try {
          rank.step(2, report);
        } catch (const Error& e) {
          seen[me].next = e.status();
          seen[me].next_message = e.message();
        }
      });
      for (int r = 0; r < kRanks; ++r) {
        const Seen& s = seen[static_cast<size_t>(r)];
        const bool eager = commit == CommitMode::kEager;
        INFO("rank " << r << (eager ? ", eager, " : ", atomic, ") << status_name(s.status) << ", "
                     << s.next_message);
        // The others may not have heard of the last vote's end yet; before it eager ones commit.
        const bool in_doubt = r != 1 && s.status == (eager ? Status::kTorn : Status::kUndecided);
        CHECK((s.status == Status::kOk || in_doubt));
        CHECK((s.changed_whole || in_doubt));
        CHECK(s.next == Status::kInvalidState);
        CHECK(s.next_message.find("planted") != std::string::npos);
      }
      CHECK_FALSE(measured[1]);
    }
  }
}

TEST_CASE("faults: counts of AdamW's steps that differ between ranks are a mismatch, by name",
          "[unit][optimizer]") {
  world::Case c = small_case(CommitMode::kAtomic);
  c.arguments = [&](StepSettings& s, int64_t step, int) {
    if (step == 0) s.without_grad = {4};
  };
  std::vector<std::string> said(kRanks);
  world::on_ranks(kRanks, [&](Comm& comm) {
    world::Rank rank(c, comm);
    StepReport report;
    RANK_CHECK(rank.step(0, report) == Status::kOk);
    // The number that it has; but now AdamW counts the step without a gradient, too.
    if (comm.rank() == 1) rank.optimizer().set_steps(1);
    const auto before = bytes_of(rank, c.params.size());
    try {
      rank.step(1, report);
    } catch (const Error& e) {
      if (e.status() == Status::kMismatch) said[static_cast<size_t>(comm.rank())] = e.message();
    }
    RANK_CHECK(before == bytes_of(rank, c.params.size()));
  });
  for (const std::string& s : said) {
    INFO(s);
    CHECK(s.find("param 'bias' has had updates") != std::string::npos);
  }
}
