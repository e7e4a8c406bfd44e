#include <catch2/catch.hpp>
#include <map>
#include <mutex>

#include "support/attempts.hpp"
#include "support/caller_functions.hpp"
#include "support/rank_check.hpp"

// Tests the caller's assign, gather and redistribute functions: the errors that they cause, and
// that a failed step changes nothing.

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

/// Returns the status and the message of creating an optimizer.
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
  // With window 2, a rank makes four calls per step: gather of the first and of the second
  // parameter, then redistribute of the first and of the second. The steps before and after the
  // failed one are committed.
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
    RANK_CHECK(rank.step(1, report) == Status::kOk);  // the optimizer remains usable
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
  CHECK_THAT(outside.message, Contains("owner 3") && Contains("0 and 2"));
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
  // 7 rows over 3 ranks are cut into 3, 3 and 1 rows, because ceil(7 / 3) is 3. 2 rows are cut into
  // 1, 1 and 0 rows.
  CHECK(holders == std::vector<std::vector<int32_t>>{{0, 1, 2}, {0, 1}});
}

namespace {

/// Counts of the parameters that a rank has gathered but not redistributed yet. Each member is a
/// maximum over the step: the number of owners of these parameters, the number of these parameters
/// with the same owner (of_one), and the number of all these parameters.
struct InWork {
  size_t owners = 0;
  int64_t of_one = 0, all = 0;
};

InWork in_work(const std::vector<world::Board::Call>& calls) {
  InWork out;
  std::map<int32_t, int64_t> now;
  int64_t all = 0;
  for (const world::Board::Call& call : calls) {
    now[call.owner] += call.gathers ? 1 : -1;
    all += call.gathers ? 1 : -1;
    if (now[call.owner] == 0) now.erase(call.owner);
    out.owners = std::max(out.owners, now.size());
    out.all = std::max(out.all, all);
    for (const auto& [owner, count] : now) out.of_one = std::max(out.of_one, count);
  }
  return out;
}

}  // namespace

TEST_CASE("functions: all owners work at once, whatever number of gathers runs ahead",
          "[unit][functions]") {
  constexpr int kWorld = 4, kParams = 8;
  world::Case c = world::on_mesh({kWorld});
  for (int64_t i = 0; i < kParams; ++i)
    world::add(c, cat("w", i), {5 + i, 6}, {{PlacementKind::kShard, 0, 1}});
  c.steps = 1;
  const world::Tensors expected = world::run(c).tensors;
  // The owners are 0 0 1 1 2 2 3 3 if `adjacent`, otherwise 0 1 2 3 0 1 2 3.
  for (const bool adjacent : {false, true}) {
    for (const bool serial : {false, true}) {
      for (const int prefetch : {0, 1, 3}) {
        INFO("adjacent " << adjacent << ", serial " << serial << ", prefetch " << prefetch);
        world::Board board(c);
        for (int p = 0; p < kParams; ++p) board.own(p, {adjacent ? p / 2 : p % kWorld});
        world::Case own = c;
        own.settings.serial = serial;
        own.settings.window = prefetch + 1;
        own.adjust = [&](OptimizerSettings& s, int rank) { board.serve(s, rank); };
        CHECK(world::run(own).tensors == expected);
        const std::vector<world::Board::Call>& calls = board.calls_of(0);
        CHECK(std::ssize(calls) == 2 * kParams);
        for (int r = 1; r < kWorld; ++r) CHECK(board.calls_of(r) == calls);
        const InWork most = in_work(calls);
        CHECK(most.owners ==
              (serial ? std::min<size_t>(adjacent ? (prefetch + 3) / 2 : prefetch + 1, kWorld)
                      : kWorld));
        if (serial) CHECK(most.all == prefetch + 1);
        if (!serial) CHECK(most.of_one == std::min(prefetch + 1, kParams / kWorld));
      }
    }
  }
}

namespace {

/// Returns a case with eight experts, two on each of four ranks, and a matrix that all ranks hold.
world::Case experts() {
  world::Case c = world::on_mesh({4});
  const Placement s0{PlacementKind::kShard, 0, 1};
  world::add(c, "experts", {8, 6, 5}, {s0});
  c.params[0].view = View::kStack;
  world::add(c, "dense", {9, 7}, {s0});
  c.steps = 3;
  return c;
}

const std::vector<int32_t> kOfHolders = {0, 0, 1, 1, 2, 2, 3, 3}, kMixed = {3, 0, 2, 2, 0, 3, 1, 0};

}  // namespace

TEST_CASE("functions: every matrix of a stack that is cut over experts has its owner",
          "[unit][functions]") {
  const world::Case built_in = experts();
  const world::Tensors expected = world::run(built_in).tensors;
  world::Case c = experts();
  const auto check = [&](const std::vector<int32_t>& owners) {
    world::on_each(c, [&](world::Rank& rank, Comm&) {
      for (const Matrix& m : rank.optimizer().plan().matrices())
        if (m.param == 0) RANK_CHECK(m.owner == owners[static_cast<size_t>(m.index)]);
    });
    CHECK(world::run(c).tensors == expected);
  };
  SECTION("set in the parameter") {
    // If an owner is -1, the plan chooses a rank that holds the expert.
    for (const std::vector<int32_t>& owners : {kOfHolders, {0, -1, 1, -1, 2, -1, 3, -1}}) {
      c.adjust = [&](OptimizerSettings& s, int) { s.params[0].owners = owners; };
      check(kOfHolders);
    }
  }
  SECTION("assigned, with the built-in exchanges") {
    c.adjust = [&](OptimizerSettings& s, int) {
      s.assign_owner = [](int64_t, const ParamSettings& p, const auto&, int32_t* owner) {
        const auto holders = holders_of_matrices(p, 4);
        for (size_t i = 0; i < holders.size(); ++i) owner[i] = holders[i].front();
        return 0;
      };
    };
    check(kOfHolders);
  }
  SECTION("with the caller's exchanges, by any rank") {
    for (const bool serial : {false, true}) {
      for (const bool parts : {false, true}) {
        c.settings.serial = serial;
        if (parts) c.params[0].parts = {{"top", {{0, 2}}, whole(5)}, {"rest", {{2, 6}}, whole(5)}};
        world::Case plain = experts();
        plain.params[0].parts = c.params[0].parts;
        world::Board board(c);
        board.own(0, kMixed);
        world::Case own = c;
        own.adjust = [&](OptimizerSettings& s, int rank) { board.serve(s, rank); };
        CHECK(world::run(own).tensors == world::run(plain).tensors);
        // Each rank gathers and redistributes once for each of the four owners, and once for
        // "dense".
        CHECK(std::ssize(board.calls_of(2)) == 2 * (4 + 1) * c.steps);
      }
    }
  }
}

TEST_CASE("functions: owners of a stack that are invalid are rejected, and named",
          "[unit][functions]") {
  using Assign = void (*)(int32_t*);
  const std::tuple<std::vector<int32_t>, Assign, const char*> rows[] = {
      {{0, 0, 1, 1, 2, 2, 3}, nullptr, "owners has 7 ranks, but the parameter has 8 matrices"},
      {{0, 0, 1, 4, 2, 2, 3, 3}, nullptr, "owners[3] is 4, but must be a rank, 0 to 3"},
      {{0, 0, 1, 1, 0, 2, 3, 3}, nullptr, "owner 0 is not one of the ranks that hold matrix 4"},
      {kOfHolders, [](int32_t*) {}, "owners is"},
      {{}, [](int32_t* o) { o[0] = 0; }, "owner 0 is not one of the ranks that hold matrix 2"},
      {{}, [](int32_t* o) { o[0] = o[2] = 1; }, "assign returned owner -1 for matrix 1"},
      {{}, [](int32_t* o) { std::fill_n(o, 8, 9); }, "assign returned owner 9 for matrix 0"}};
  for (const auto& [owners, assign, words] : rows) {
    INFO(words);
    world::Case c = experts();
    c.adjust = [assign = assign, owners = owners](OptimizerSettings& s, int) {
      s.params[0].owners = owners;
      if (!assign) return;
      s.assign_owner = [assign](int64_t param, const auto&, const auto&, int32_t* owner) {
        if (param == 0)
          assign(owner);
        else
          *owner = 0;
        return 0;
      };
    };
    const world::Ended end = creation(c);
    CHECK(end.status == Status::kInvalidArgument);
    CHECK_THAT(end.message, Contains("'experts'") && Contains(words));
  }
  world::Case c = experts();
  c.adjust = [](OptimizerSettings& s, int) { s.params[1].owner = 2, s.params[1].owners = {2}; };
  CHECK_THAT(creation(c).message, Contains("'dense'") && Contains("owner is 2, and owners"));
  c.adjust = [](OptimizerSettings& s, int) { s.params[1].owners = {2}; };
  c.params[1].role = Role::kAdamW;
  CHECK_THAT(creation(c).message, Contains("'dense'") && Contains("AdamW parameters have no"));
}

TEST_CASE("functions: settings that exclude each other are rejected", "[unit][functions]") {
  const std::tuple<void (*)(OptimizerSettings&), Status, const char*> rows[] = {
      {[](auto& s) { s.exchange_callbacks.redistribute = nullptr; }, Status::kInvalidArgument,
       "only gather is set"},
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
