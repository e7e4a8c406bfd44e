#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <mutex>

#include "plan/report/traffic.hpp"
#include "support/attempts.hpp"
#include "support/rank_check.hpp"

// The moments of NorMuon in whole steps; step_textbook_test.cpp compares the weights with the
// float64 reference implementation, step_rules_test.cpp their bits.

using namespace muonrt;

namespace {

std::vector<float> floats(const std::vector<unsigned char>& bytes) {
  std::vector<float> out(bytes.size() / 4);
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

world::Case make_case() {
  world::Case c = world::on_mesh({2, 2});
  c.steps = 3;
  c.settings.transport = DType::kF32;
  c.settings.groups = world::default_groups();
  c.settings.groups[0].normuon = NormuonAxis::kRows;
  c.settings.groups[0].normuon_beta2 = 0.9;
  const Placement r{PlacementKind::kReplicate, 0, 1}, s0{PlacementKind::kShard, 0, 1},
      s1{PlacementKind::kShard, 1, 1};
  c.params = {world::matrix("wide", {24, 60}, {r, s0}), world::matrix("tall", {61, 24}, {s0, s1}),
              world::matrix("square", {40, 40}, {s1, s0}), world::matrix("row", {1, 33}, {s0, s1}),
              world::matrix("column", {35, 1}, {s0, s0})};
  return c;
}

}  // namespace

TEST_CASE("normuon: a first step gives all rows one norm, and a skipped step changes no moment",
          "[unit][optimizer][normuon]") {
  world::Case c = make_case();
  c.world = 1;
  c.mesh = {1};
  c.settings.groups[0].weight_decay = 0;
  c.params = {c.params[1]};  // tall
  c.params[0].placements.clear();
  world::on_ranks(1, [&](Comm& comm) {
    world::Rank rank(c, comm);
    const auto before = floats(rank.data(0));
    StepReport report;
    REQUIRE(rank.step(0, report) == Status::kOk);
    const auto after = floats(rank.data(0));
    std::vector<double> norms(61, 0.0);
    for (size_t e = 0; e < after.size(); ++e)
      norms[e / 24] += std::pow(static_cast<double>(after[e]) - static_cast<double>(before[e]), 2);
    for (const double norm : norms) CHECK(norm == Approx(norms[0]).epsilon(1e-4));

    const auto moments = rank.state(0, StateKind::kNormuon);
    REQUIRE(moments.size() == 61 * 4);
    CHECK(*std::max_element(moments.begin(), moments.end()) > 0);
    rank.fill_gradients(1);
    const float bad = std::nanf("");
    std::memcpy(rank.grad(0).data() + 400, &bad, 4);
    CHECK(rank.step_only(1, report) == Status::kSkipped);
    CHECK(rank.state(0, StateKind::kNormuon) == moments);
    // Nor does a step that the parameter sits out.
    c.without_grad = {{}, {}, {0}};
    rank.fill_gradients(2);
    CHECK(rank.step_only(2, report) == Status::kOk);
    CHECK(rank.state(0, StateKind::kNormuon) == moments);
  });
}

TEST_CASE("normuon: parts have axes of their own", "[unit][optimizer][normuon]") {
  world::Case c = make_case();
  c.world = 1;
  c.mesh = {1};
  c.params = {c.params[1]};
  c.params[0].placements.clear();
  c.params[0].parts = {{"top", {{0, 20}}, {{0, 24}}, 1.0, 1.0, NormuonAxis::kColumns},
                       {"rest", {{20, 61}}, {{0, 24}}}};
  world::on_ranks(1, [&](Comm& comm) {
    world::Rank rank(c, comm);
    StepReport report;
    REQUIRE(rank.step(0, report) == Status::kOk);
    CHECK(rank.state(0, StateKind::kNormuon).size() == (24 + 41) * 4);
  });
  c.settings.groups[0].normuon = NormuonAxis::kOff;
  CHECK_THROWS_WITH(world::run(c), Catch::Contains("normuon_axis is set"));
}

TEST_CASE("normuon: the owners' pieces hold every line once, and a step writes no other",
          "[unit][optimizer][normuon]") {
  world::Case c = make_case();
  c.params[1].parts = {{"top", {{0, 20}}, {{0, 24}}, 1.0, 1.0, NormuonAxis::kColumns},
                       {"rest", {{20, 61}}, {{0, 24}}}};
  const std::vector<int64_t> lines = {24, 24 + 41, 40, 0, 35};
  std::vector<std::vector<int>> owners(lines.size());
  for (size_t p = 0; p < lines.size(); ++p) owners[p].resize(static_cast<size_t>(lines[p]));
  std::mutex one_rank;
  int64_t foreign = 0;  // written, of other owners
  world::on_ranks(c.world, [&](Comm& comm) {
    world::Rank rank(c, comm);
    StepReport report;
    rank.step(0, report);
    const std::lock_guard<std::mutex> lock(one_rank);
    for (int64_t p = 0; p < std::ssize(lines); ++p) {
      if (lines[static_cast<size_t>(p)] == 0) continue;
      auto& seen = owners[static_cast<size_t>(p)];
      std::vector<float> moments = floats(rank.state(p, StateKind::kNormuon));
      for (const StatePiece& piece : rank.optimizer().state_pieces(p, StateKind::kNormuon)) {
        for (int64_t i = piece.begin; i < piece.begin + piece.numel; ++i) {
          const auto at = static_cast<size_t>(i);
          seen.at(at) += moments.at(at) > 0;
          moments[at] = 0;
        }
      }
      for (const float other : moments) foreign += other != 0;
    }
  });
  CHECK(foreign == 0);
  for (size_t p = 0; p < lines.size(); ++p) {
    INFO(c.params[p].name);
    CHECK(owners[p] == std::vector<int>(owners[p].size(), 1));
  }
}

TEST_CASE("normuon: the plan states the memory of the moments, with their owners",
          "[unit][optimizer][normuon]") {
  world::Case c = make_case();
  c.params[1].shape = {161, 24};
  // Moments, staged ones and factors of all lines, each padded to 64 numbers. A row is one vector.
  const int64_t bytes[] = {3 * 64 * 4, 3 * 192 * 4, 3 * 64 * 4, 0, 3 * 64 * 4};
  std::vector<int64_t> stated(4), expected(4);
  world::on_ranks(c.world, [&](Comm& comm) {
    world::Rank rank(c, comm);
    const Plan& plan = rank.optimizer().plan();
    const auto r = static_cast<size_t>(comm.rank());
    stated[r] = measure_traffic(plan).ranks[r].memory.state_bytes;
    for (size_t i = 0; i < c.params.size(); ++i) {
      expected[r] += 4 * rank.layout(static_cast<int64_t>(i)).local_numel(comm.rank());
      if (plan.matrices()[i].owner == comm.rank()) expected[r] += bytes[i];
    }
  });
  CHECK(stated == expected);
}

TEST_CASE("normuon: replicas that each orthogonalize have the moments of one rank, in their places",
          "[unit][optimizer][normuon]") {
  world::Case c = make_case();
  c.params.resize(1);
  c.params[0].parts = {{"top", {{0, 10}}, {{0, 60}}}, {"rest", {{10, 24}}, {{0, 60}}}};
  const auto moments_of = [&](world::Rank& rank, Comm&) {
    StepReport report;
    for (int step = 0; step < c.steps; ++step) rank.step(step, report);
    return rank.state(0, StateKind::kNormuon);
  };
  world::Case alone = c;
  alone.world = 1;
  alone.mesh = {1};
  alone.params[0].placements.clear();
  const auto expected = world::on_each(alone, moments_of)[0];
  REQUIRE(expected.size() == 24 * 4);
  c.settings.replicas = Replicas::kEach;
  std::vector<int> found(24, 0);
  for (const auto& moments : world::on_each(c, moments_of)) {
    if (moments.empty()) continue;
    REQUIRE(moments.size() == expected.size());
    for (size_t line = 0; line < 24; ++line)
      found[line] += std::memcmp(&moments[line * 4], &expected[line * 4], 4) == 0;
  }
  for (const int owners : found) CHECK(owners == 2);  // one in every replica
}
