#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <mutex>

#include "plan/report/traffic.hpp"
#include "state/pieces.hpp"
#include "support/bits_cases.hpp"
#include "support/rank_check.hpp"
#include "support/world.hpp"
#include "textbook/textbook.hpp"

// NorMuon in whole steps over ranks.

using namespace muonrt;

namespace {

std::vector<float> floats(const std::vector<unsigned char>& bytes) {
  std::vector<float> out(bytes.size() / 4);
  if (!out.empty()) std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

textbook::Matrix values(int64_t param, int64_t rows, int64_t cols, int64_t step) {
  textbook::Matrix out(rows, cols);
  for (int64_t e = 0; e < rows * cols; ++e)
    out.v[static_cast<size_t>(e)] = static_cast<double>(world::value(param, e, step));
  return out;
}

world::Case make_case(NormuonAxis axis) {
  world::Case c;
  c.mesh = {2, 2};
  c.world = 4;
  c.steps = 3;
  c.settings.transport = DType::kF32;
  c.settings.groups = world::default_groups();
  c.settings.groups[0].normuon = axis;
  c.settings.groups[0].normuon_beta2 = 0.9;
  const Placement r{PlacementKind::kReplicate, 0, 1}, s0{PlacementKind::kShard, 0, 1},
      s1{PlacementKind::kShard, 1, 1};
  c.params = {world::matrix("wide", {24, 60}, {r, s0}), world::matrix("tall", {61, 24}, {s0, s1}),
              world::matrix("square", {40, 40}, {s1, s0}), world::matrix("row", {1, 33}, {s0, s1}),
              world::matrix("column", {35, 1}, {s0, s0})};
  return c;
}

}  // namespace

TEST_CASE(
    "normuon: rows, columns and the longer side follow the textbook, one vector is left alone",
    "[unit][optimizer][normuon]") {
  for (const NormuonAxis axis : {NormuonAxis::kRows, NormuonAxis::kColumns, NormuonAxis::kLonger}) {
    const world::Case c = make_case(axis);
    const world::Outcome outcome = world::run(c);
    for (size_t i = 0; i < c.params.size(); ++i) {
      const world::Param& p = c.params[i];
      INFO(p.name << " axis " << static_cast<int>(axis));
      const auto index = static_cast<int64_t>(i);
      const int64_t rows = p.shape[0], cols = p.shape[1];
      const bool by_columns =
          axis == NormuonAxis::kColumns || (axis == NormuonAxis::kLonger && cols > rows);
      textbook::Muon how;
      how.lr = c.lr;
      how.list = textbook::lists::kPolarModded;
      how.safety = 1.02;
      how.normuon = (by_columns ? cols : rows) > 1;
      how.normuon_columns = by_columns;
      how.normuon_beta2 = 0.9;
      textbook::Matrix w = values(index, rows, cols, -1), m(rows, cols);
      std::vector<double> v;
      for (int step = 0; step < c.steps; ++step)
        textbook::muon_step(how, w, m, values(index, rows, cols, step), &v);
      const auto found = floats(outcome.tensors.params[i]);
      double worst = 0;
      for (size_t e = 0; e < found.size(); ++e)
        worst = std::max(worst, std::abs(static_cast<double>(found[e]) - w.v[e]));
      // Steps of at most 0.02 x 0.2 x sqrt(61) x 3 after three; products err by 1e-5 of that.
      CHECK(worst < 2e-5);
    }
  }
}

TEST_CASE("normuon: a first step gives all rows one norm, and a skipped step changes no moment",
          "[unit][optimizer][normuon]") {
  world::Case c = make_case(NormuonAxis::kRows);
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
  world::Case c = make_case(NormuonAxis::kRows);
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
  world::Case c = make_case(NormuonAxis::kRows);
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
      for (const LocalPiece& piece : local_pieces(rank.optimizer(), false)) {
        if (piece.tensor.param != p) continue;
        if (piece.tensor.kind != static_cast<int32_t>(StateKind::kNormuon)) continue;
        for (int64_t i = piece.extent.begin; i < piece.extent.end; ++i) {
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
  world::Case c = make_case(NormuonAxis::kRows);
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

TEST_CASE("normuon: same bits on every mesh", "[bits][normuon]") {
  for (const bool half : {false, true}) {
    for (const NormuonAxis axis : {NormuonAxis::kRows, NormuonAxis::kLonger}) {
      const auto prepared = [&](const bits::Factors& f) {
        world::Case c = bits::make(f, half, 4);
        if (c.settings.groups.empty()) c.settings.groups = world::default_groups();
        c.settings.groups[0].normuon = axis;
        return c;
      };
      const auto reference = world::run(prepared({})).tensors;
      for (const bits::Factors& f :
           {bits::Factors{.mesh = 5, .scheme = 1, .window = 2, .threads = 2},
            {.mesh = 3, .window = 1, .chunk = 1, .commit = 1},
            {.mesh = 9, .scheme = 5},
            {.mesh = 10, .scheme = 3, .chunk = 1, .threads = 2}}) {
        const world::Case c = prepared(f);
        INFO(c.describe());
        CHECK((world::run(c).tensors == reference));
      }
    }
  }
}

TEST_CASE("normuon: replicas that each orthogonalize have the moments of one rank, in their places",
          "[unit][optimizer][normuon]") {
  world::Case c = make_case(NormuonAxis::kRows);
  c.params.resize(1);
  c.params[0].parts.resize(2);
  c.params[0].parts[0].rows = {{0, 10}};
  c.params[0].parts[0].cols = {{0, 60}};
  c.params[0].parts[1].rows = {{10, 24}};
  c.params[0].parts[1].cols = {{0, 60}};
  world::Case alone = c;
  alone.world = 1;
  alone.mesh = {1};
  alone.params[0].placements.clear();
  std::vector<unsigned char> expected;
  world::on_ranks(1, [&](Comm& comm) {
    world::Rank rank(alone, comm);
    StepReport report;
    for (int step = 0; step < c.steps; ++step) rank.step(step, report);
    expected = rank.state(0, StateKind::kNormuon);
  });
  REQUIRE(expected.size() == 24 * 4);
  c.settings.replicas = Replicas::kEach;
  std::mutex mutex;
  std::vector<int> found(24, 0);
  world::on_ranks(c.world, [&](Comm& comm) {
    world::Rank rank(c, comm);
    StepReport report;
    for (int step = 0; step < c.steps; ++step) rank.step(step, report);
    const auto moments = rank.state(0, StateKind::kNormuon);
    if (moments.empty()) return;
    const std::lock_guard lock(mutex);
    RANK_CHECK(moments.size() == expected.size());
    for (size_t line = 0; line < 24; ++line)
      found[line] += std::memcmp(&moments[line * 4], &expected[line * 4], 4) == 0;
  });
  for (const int owners : found) CHECK(owners == 2);  // one in every replica
}
