#include <catch2/catch.hpp>
#include <mutex>

#include "support/attempts.hpp"
#include "support/caller_functions.hpp"
#include "support/rank_check.hpp"

// The caller's assign, gather and redistribute functions: which errors they cause, and that a
// failed step changes nothing.

using namespace muonrt;
using Catch::Contains;

namespace {

world::Case three_ranks() {
  world::Case c = world::on_mesh({3});
  const Placement rows{PlacementKind::kShard, 0, 1};
  world::add(c, "first", {7, 5}, {rows});
  world::add(c, "bias", {9}, {rows});
  world::add(c, "second", {2, 6}, {rows});
  return c;
}

/// The status and message of the creation.
world::Ended creation(const world::Case& c) {
  world::Ended out;
  try {
    world::on_each(c, [](world::Rank&, Comm&) {});
  } catch (const Error& e) {
    out.status = e.status();
    out.message = e.message();
  }
  return out;
}

}  // namespace

TEST_CASE("functions: an error on one rank rejects the step on all ranks, and nothing changes",
          "[unit][functions]") {
  // Calls of a rank in a step: gather first, gather second, redistribute first, redistribute second
  // (window 2). The step before and the step after are committed.
  const int64_t failing_call = GENERATE(range(0, 4));
  const int failing_rank = GENERATE(0, 2);
  world::Case c = three_ranks();
  c.settings.window = 2;
  world::Board board(c);
  c.adjust = [&](OptimizerSettings& s, int rank) { board.serve(s, rank); };
  board.fail(failing_rank, 4 + failing_call, 17);
  std::vector<world::Ended> ends(3);
  const world::Tensors last = world::tensors_after(c, [&](world::Rank& rank, Comm& comm) {
    StepReport report;
    RANK_CHECK(rank.step(0, report) == Status::kOk);
    ends[static_cast<size_t>(comm.rank())] = world::attempt(rank, 1);
    RANK_CHECK(rank.step(1, report) == Status::kOk);  // the optimizer is usable
    RANK_CHECK(report.step == 2);
  });
  const char* const function = failing_call < 2 ? "gather" : "redistribute";
  const char* const param = failing_call % 2 == 0 ? "'first'" : "'second'";
  for (const world::Ended& end : ends) {
    CHECK(end.status == Status::kCallback);
    CHECK_THAT(end.message, Contains(cat("rank ", failing_rank)) && Contains(param) &&
                                Contains(cat(function, " returned 17")));
    CHECK(end.unchanged);
  }
  world::Case built_in = three_ranks();
  built_in.steps = 2;
  CHECK(last == world::run(built_in).tensors);
}

TEST_CASE("functions: an invalid owner map is rejected on every rank", "[unit][functions]") {
  world::Case c = three_ranks();
  const auto attempt = [&](const std::function<int(int rank, int64_t param, int32_t* owner)>& map) {
    c.adjust = [&, map](OptimizerSettings& s, int rank) {
      s.assign_owner = [rank, map](int64_t p, const auto&, const auto&, int32_t* o) {
        return map(rank, p, o);
      };
    };
    return creation(c);
  };
  const world::Ended omitted = attempt([](int rank, int64_t param, int32_t* owner) {
    if (param == 0 || rank != 1) *owner = 0;
    return 0;
  });
  CHECK(omitted.status == Status::kInvalidArgument);
  CHECK_THAT(omitted.message, Contains("rank 1") && Contains("'second'") && Contains("owner -1"));
  const world::Ended differs = attempt([](int rank, int64_t param, int32_t* owner) {
    *owner = param == 2 && rank == 2 ? 1 : 0;
    return 0;
  });
  CHECK(differs.status == Status::kMismatch);
  CHECK_THAT(differs.message, Contains("'second'") && Contains("owner"));
  const world::Ended fails = attempt([](int rank, int64_t, int32_t* owner) {
    *owner = 0;
    return rank == 1 ? -4 : 0;
  });
  CHECK(fails.status == Status::kCallback);
  CHECK_THAT(fails.message, Contains("assign returned -4") && Contains("'first'"));
  const world::Ended outside = attempt([](int, int64_t, int32_t* owner) {
    *owner = 3;
    return 0;
  });
  CHECK(outside.status == Status::kInvalidArgument);
  CHECK_THAT(outside.message, Contains("owner 3") && Contains("0 to 2"));
}

TEST_CASE("functions: assign without the others sets owners of the built-in exchanges",
          "[unit][functions]") {
  world::Case c = three_ranks();
  c.steps = 1;
  std::mutex mutex;
  std::vector<std::vector<int32_t>> holders;
  c.adjust = [&](OptimizerSettings& s, int rank) {
    s.assign_owner = [&, rank](int64_t, const ParamSettings&, const std::vector<int32_t>& who,
                               int32_t* owner) {
      const std::lock_guard lock(mutex);
      if (rank == 0) holders.push_back(who);
      *owner = 1;
      return 0;
    };
  };
  world::on_each(c, [&](world::Rank& rank, Comm&) {
    for (const Matrix& m : rank.optimizer().plan().matrices()) RANK_CHECK(m.owner == 1);
    StepReport report;
    RANK_CHECK(rank.step(0, report) == Status::kOk);
  });
  // 7 rows in ceil-sized chunks of 3: 3, 3, 1; 2 rows: 1, 1, none.
  CHECK(holders == std::vector<std::vector<int32_t>>{{0, 1, 2}, {0, 1}});
}

TEST_CASE("functions: settings that exclude each other are rejected", "[unit][functions]") {
  const std::tuple<void (*)(OptimizerSettings&), Status, const char*> rows[] = {
      {[](auto& s) { s.exchange_callbacks.redistribute = nullptr; }, Status::kInvalidArgument,
       "only gather is given"},
      {[](auto& s) { s.assign_owner = nullptr; }, Status::kInvalidArgument, "without assign"},
      {[](auto& s) { s.commit = CommitMode::kEager; }, Status::kNotSupported, "eager"}};
  for (const auto& [change, status, words] : rows) {
    world::Case c = three_ranks();
    world::Board board(c);
    c.adjust = [&, change = change](OptimizerSettings& s, int rank) {
      board.serve(s, rank);
      change(s);
    };
    const world::Ended end = creation(c);
    CHECK(end.status == status);
    CHECK_THAT(end.message, Contains(words));
  }
}
