#include <catch2/catch.hpp>
#include <functional>
#include <limits>

#include "base/error.hpp"
#include "unit/plan/plan_cases.hpp"

using namespace muonrt;

namespace {

Problem good() {
  Problem out;
  out.options.world = 4;
  const auto on = plan_case::mesh({2, 2});
  out.params.push_back(plan_case::muon("w", on, {6, 5}, 1));
  out.params.push_back(plan_case::muon("experts", on, {3, 4, 5}, 0));
  ParamSpec bias = plan_case::muon("bias", on, {7});
  bias.role = Role::kAdamW;
  out.params.push_back(bias);
  return out;
}

struct Bad {
  const char* what;
  std::function<void(Problem&)> spoil;
  Status status;
  std::vector<const char*> says;
};

void reshape(ParamSpec& spec, std::vector<int64_t> shape) {
  spec.layout = Layout::from_cuts(spec.layout.shared_mesh(), std::move(shape), {});
}

const std::vector<Bad>& bad_problems() {
  static const std::vector<Bad> list = {
      {"no ranks", [](Problem& p) { p.options.world = 0; }, Status::kInvalidArgument, {"world"}},
      {"no budget",
       [](Problem& p) { p.options.chunk_bytes = 0; },
       Status::kInvalidArgument,
       {"chunk budget", "0"}},
      {"no window", [](Problem& p) { p.options.window = 0; }, Status::kInvalidArgument, {"window"}},
      {"a mesh outside the world",
       [](Problem& p) { p.options.world = 3; },
       Status::kInvalidArgument,
       {"'w'", "rank 3", "3 ranks"}},
      {"no name", [](Problem& p) { p.params[1].name = ""; }, Status::kInvalidArgument, {"1"}},
      {"two of one name",
       [](Problem& p) { p.params[1].name = "w"; },
       Status::kInvalidArgument,
       {"'w'", "distinct"}},
      {"1-D Muon",
       [](Problem& p) { reshape(p.params[0], {6}); },
       Status::kInvalidArgument,
       {"'w'", "[6]", "AdamW"}},
      {"4-D Muon",
       [](Problem& p) {
         reshape(p.params[0], {6, 5, 3, 3});
       },
       Status::kInvalidArgument,
       {"'w'", "[6, 5, 3, 3]", "view"}},
      {"3-D Muon that is no stack",
       [](Problem& p) { p.params[1].stack = false; },
       Status::kInvalidArgument,
       {"'experts'", "[3, 4, 5]", "stack of 3"}},
      {"a stack that is 2-D",
       [](Problem& p) { p.params[0].stack = true; },
       Status::kInvalidArgument,
       {"'w'", "[6, 5]", "stack"}},
      {"an owner outside the world",
       [](Problem& p) { p.params[0].owner = 4; },
       Status::kInvalidArgument,
       {"'w'", "owner 4"}},
      {"an owner that is no rank",
       [](Problem& p) { p.params[0].owner = -2; },
       Status::kInvalidArgument,
       {"'w'", "owner -2"}},
      {"an owner that holds only some experts",
       [](Problem& p) { p.params[1].owner = 0; },
       Status::kInvalidArgument,
       {"'experts'", "owner 0", "matrix 2"}},
      {"an owner of an AdamW parameter",
       [](Problem& p) { p.params[2].owner = 0; },
       Status::kInvalidArgument,
       {"'bias'", "AdamW"}},
      {"a scale that is no number",
       [](Problem& p) { p.params[0].update_scale = std::numeric_limits<double>::quiet_NaN(); },
       Status::kInvalidArgument,
       {"'w'", "scale"}},
      {"no steps",
       [](Problem& p) { p.params[0].newton_schulz_steps = 0; },
       Status::kInvalidArgument,
       {"'w'", "steps"}},
      {"restarts that do not ascend",
       [](Problem& p) {
         p.params[0].form = FormChoice::kGram;
         p.params[0].gram_restarts = {2, 1};
       },
       Status::kInvalidArgument,
       {"'w'", "[2, 1]"}},
      {"a matrix beyond counting",
       [](Problem& p) {
         reshape(p.params[0], {int64_t{1} << 31, int64_t{1} << 31});
       },
       Status::kInvalidArgument,
       {"'w'", "AdamW"}},
      {"more work than can be counted",
       [](Problem& p) {
         reshape(p.params[1], {1 << 20, 1 << 18, 1 << 18});
       },
       Status::kInvalidArgument,
       {"63 bits"}},
  };
  return list;
}

}  // namespace

TEST_CASE("plan: a bad problem is refused with its status, naming what is wrong", "[unit][plan]") {
  CHECK_NOTHROW(Plan(good()));
  for (const Bad& bad : bad_problems()) {
    Problem problem = good();
    bad.spoil(problem);
    INFO(bad.what);
    try {
      const Plan plan(problem);
      FAIL_CHECK("was accepted");
    } catch (const Error& error) {
      INFO(error.message());
      CHECK(error.status() == bad.status);
      for (const char* word : bad.says) CHECK(error.message().find(word) != std::string::npos);
      CHECK(error.message().find("; ") != std::string::npos);  // what to do
    }
  }
}

TEST_CASE("plan: a rank outside the world is refused", "[unit][plan]") {
  const Plan plan(good());
  CHECK_THROWS_AS(plan.rank_slots(4), Error);
  CHECK_THROWS_AS(plan.rank_slots(-1), Error);
}

TEST_CASE("plan: parameters without elements or matrices are no error and have no slot",
          "[unit][plan]") {
  Problem problem = good();
  reshape(problem.params[0], {0, 5});
  reshape(problem.params[1], {0, 4, 5});
  const Plan plan(problem);
  CHECK(plan.matrices().empty());
  CHECK(plan.slots().empty());
  CHECK(plan.makespan() == 0);
  for (int r = 0; r < 4; ++r) CHECK(plan.rank_slots(r).empty());
  CHECK_FALSE(plan.describe().empty());
  CHECK(Plan(Problem{}).matrices().empty());
}

TEST_CASE("plan: AdamW parameters of any shape are planned and do not travel", "[unit][plan]") {
  Problem problem = good();
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{}, {7}, {0}, {6, 5}, {3, 4, 5}, {2, 3, 2, 2, 2}}) {
    reshape(problem.params[2], shape);
    const Plan plan(problem);
    CHECK(plan.matrices().size() == 1 + 3);
    for (const Matrix& m : plan.matrices()) CHECK(m.param != 2);
  }
}
