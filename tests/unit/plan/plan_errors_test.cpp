#include <catch2/catch.hpp>
#include <cmath>
#include <functional>

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

void reshape(ParamSpec& spec, std::vector<int64_t> shape) {
  spec.layout = Layout::from_cuts(spec.layout.shared_mesh(), std::move(shape), {});
}

/// A problem that `spoil` makes invalid, and the texts that the error message must contain.
struct Bad {
  std::vector<const char*> says;
  std::function<void(Problem&)> spoil;
};

const Bad kBadProblems[] = {
    {{"world"}, [](Problem& p) { p.options.world = 0; }},
    {{"chunk_bytes is 0"}, [](Problem& p) { p.options.chunk_bytes = 0; }},
    {{"least_part is 0"}, [](Problem& p) { p.options.least_part = 0; }},
    {{"window"}, [](Problem& p) { p.options.window = 0; }},
    {{"max_peers is -1"}, [](Problem& p) { p.options.max_peers = -1; }},
    {{"'w'", "rank 3", "0 to 2"}, [](Problem& p) { p.options.world = 3; }},
    {{"1"}, [](Problem& p) { p.params[1].name = ""; }},
    {{"'w'", "distinct"}, [](Problem& p) { p.params[1].name = "w"; }},
    {{"'w'", "[6]", "AdamW"}, [](Problem& p) { reshape(p.params[0], {6}); }},
    {{"'w'", "[6, 5, 3, 3]", "view"},
     [](Problem& p) {
       reshape(p.params[0], {6, 5, 3, 3});
     }},
    {{"'experts'", "[3, 4, 5]", "stack of 3"}, [](Problem& p) { p.params[1].stack = false; }},
    {{"'w'", "[6, 5]", "stack"}, [](Problem& p) { p.params[0].stack = true; }},
    {{"'w'", "owner 4"}, [](Problem& p) { p.params[0].owner = 4; }},
    {{"'w'", "owner -2"}, [](Problem& p) { p.params[0].owner = -2; }},
    // Rank 0 holds only some of the experts.
    {{"'experts'", "owner 0", "matrix 2"}, [](Problem& p) { p.params[1].owner = 0; }},
    {{"'bias'", "AdamW"}, [](Problem& p) { p.params[2].owner = 0; }},
    {{"'w'", "scale"}, [](Problem& p) { p.params[0].update_scale = std::nan(""); }},
    {{"'w'", "steps"}, [](Problem& p) { p.params[0].newton_schulz_steps = 0; }},
    {{"'w'", "[2, 1]"},
     [](Problem& p) {
       p.params[0].form = FormChoice::kGram;
       p.params[0].gram_restarts = {2, 1};
     }},
    {{"'w'", "AdamW"},
     [](Problem& p) {
       reshape(p.params[0], {1LL << 31, 1LL << 31});
     }},
    {{"'w'", "15 of 30"},
     [](Problem& p) {
       p.params[0].parts = {{"q", {{0, 3}}, whole(5)}};
     }},
    {{"'q' and 'k' overlap"},
     [](Problem& p) {
       p.params[0].parts = {{"q", {{0, 4}}, whole(5)}, {"k", {{3, 6}}, whole(5)}};
     }},
    {{"'q'", "6 x 5"},
     [](Problem& p) {
       p.params[0].parts = {{"q", {{0, 7}}, whole(5)}};
     }},
    {{"63 bits"},
     [](Problem& p) {
       reshape(p.params[1], {1 << 20, 1 << 18, 1 << 18});
     }},
};

}  // namespace

TEST_CASE("plan: an invalid problem is rejected with the name and value", "[unit][plan]") {
  CHECK_NOTHROW(Plan(good()));
  for (const Bad& bad : kBadProblems) {
    Problem problem = good();
    bad.spoil(problem);
    INFO(bad.says.back());
    try {
      const Plan plan(problem);
      FAIL_CHECK("was accepted");
    } catch (const Error& error) {
      INFO(error.message());
      CHECK(error.status() == Status::kInvalidArgument);
      for (const char* word : bad.says) CHECK(error.message().find(word) != std::string::npos);
      CHECK(error.message().find("; ") != std::string::npos);  // the remedy
    }
  }
}

TEST_CASE("plan: a rank outside the world is rejected", "[unit][plan]") {
  const Plan plan(good());
  CHECK_THROWS_AS(plan.rank_chunks(4), Error);
  CHECK_THROWS_AS(plan.rank_chunks(-1), Error);
}

TEST_CASE("plan: parameters without elements or matrices are valid and have no chunk",
          "[unit][plan]") {
  Problem problem = good();
  reshape(problem.params[0], {0, 5});
  reshape(problem.params[1], {0, 4, 5});
  const Plan plan(problem);
  CHECK(plan.matrices().empty());
  CHECK(plan.chunks().empty());
  CHECK(plan.makespan() == 0);
  for (int r = 0; r < 4; ++r) CHECK(plan.rank_chunks(r).empty());
  CHECK_FALSE(plan.describe().empty());
  CHECK(Plan(Problem{}).matrices().empty());
}

TEST_CASE("plan: AdamW parameters of any shape are planned without exchanges", "[unit][plan]") {
  Problem problem = good();
  for (const std::vector<int64_t>& shape :
       {std::vector<int64_t>{}, {7}, {0}, {6, 5}, {3, 4, 5}, {2, 3, 2, 2, 2}}) {
    reshape(problem.params[2], shape);
    const Plan plan(problem);
    CHECK(plan.matrices().size() == 1 + 3);
    for (const Matrix& m : plan.matrices()) CHECK(m.param != 2);
  }
}
