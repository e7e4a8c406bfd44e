#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>

#include "support/caller_functions.hpp"
#include "support/rank_check.hpp"
#include "support/world.hpp"
#include "textbook/textbook.hpp"

// Block-periodic orthogonalization over ranks against a textbook that cuts the whole matrix.

using namespace muonrt;

namespace {

constexpr int kPeriod = 3, kBlockRows = 2, kBlockCols = 3;
constexpr double kBlockRate = 0.25;

textbook::Matrix block_of(const textbook::Matrix& from, int64_t row, int64_t col, int64_t rows,
                          int64_t cols) {
  textbook::Matrix out(rows, cols);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j) out(i, j) = from(row + i, col + j);
  return out;
}

/// Weights after a Muon step on each block of the grid by itself, in ceil chunks.
void block_step(const textbook::Muon& how, textbook::Matrix& w, textbook::Matrix& m,
                const textbook::Matrix& g) {
  const int64_t height = (w.rows + kBlockRows - 1) / kBlockRows;
  const int64_t width = (w.cols + kBlockCols - 1) / kBlockCols;
  for (int64_t row = 0; row < w.rows; row += height) {
    for (int64_t col = 0; col < w.cols; col += width) {
      const int64_t rows = std::min(height, w.rows - row), cols = std::min(width, w.cols - col);
      textbook::Matrix bw = block_of(w, row, col, rows, cols),
                       bm = block_of(m, row, col, rows, cols);
      textbook::muon_step(how, bw, bm, block_of(g, row, col, rows, cols));
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < cols; ++j) {
          w(row + i, col + j) = bw(i, j);
          m(row + i, col + j) = bm(i, j);
        }
      }
    }
  }
}

world::Case make_case() {
  world::Case c;
  c.mesh = {2, 2};
  c.world = 4;
  c.steps = 5;
  c.settings.transport = DType::kF32;
  c.settings.groups = world::default_groups();
  c.settings.groups[0].blocks = {kPeriod, kBlockRows, kBlockCols, kBlockRate};
  const Placement r{PlacementKind::kReplicate, 0, 1}, s0{PlacementKind::kShard, 0, 1},
      s1{PlacementKind::kShard, 1, 1};
  c.params = {world::matrix("wide", {25, 61}, {r, s0}), world::matrix("tall", {61, 24}, {s0, s1}),
              world::matrix("row", {1, 32}, {s0, s1})};
  return c;
}

}  // namespace

TEST_CASE("step: blocks between whole steps, each its own matrix at its own rate",
          "[unit][optimizer]") {
  const world::Case c = make_case();
  const world::Outcome outcome = world::run(c);
  for (size_t step = 0; step < outcome.reports.size(); ++step) {
    // Three whole matrices; 2 x 3 blocks of two of them and 1 x 3 of the row.
    CHECK(outcome.reports[step].planned == (step % kPeriod == 0 ? 3 : 15));
    CHECK(outcome.reports[step].orthogonalized == outcome.reports[step].planned);
  }
  for (size_t i = 0; i < c.params.size(); ++i) {
    const world::Param& p = c.params[i];
    INFO(p.name);
    textbook::Matrix w(p.shape[0], p.shape[1]), m = w, g = w;
    const auto fill = [&](textbook::Matrix& to, int64_t step) {
      for (size_t e = 0; e < to.v.size(); ++e)
        to.v[e] = static_cast<double>(
            world::value(static_cast<int64_t>(i), static_cast<int64_t>(e), step));
    };
    fill(w, -1);
    for (int step = 0; step < c.steps; ++step) {
      fill(g, step);
      textbook::Muon how;
      how.lr = c.lr;
      how.list = textbook::lists::kPolarModded;
      how.safety = 1.02;
      if (step % kPeriod == 0) {
        textbook::muon_step(how, w, m, g);
      } else {
        how.scale_times = kBlockRate;  // of the update alone, not of the decay
        block_step(how, w, m, g);
      }
    }
    double worst = 0;
    for (size_t e = 0; e < w.v.size(); ++e) {
      float x;
      std::memcpy(&x, outcome.tensors.params[i].data() + 4 * e, 4);
      worst = std::fmax(worst, std::fabs(static_cast<double>(x) - w.v[e]));
    }
    // As in the test of whole steps: f32 products, magnified by the list's gain.
    CHECK(worst < 2e-5);
  }
}

TEST_CASE("step: blocks that are shards move nothing between ranks", "[unit][optimizer]") {
  world::Case c;
  c.mesh = {2};
  c.world = 2;
  c.steps = 2;
  c.settings.groups = world::default_groups();
  c.settings.groups[0].blocks = {2, 2, 1, 1.0};
  c.params = {world::matrix("w", {16, 24}, {{PlacementKind::kShard, 0, 1}})};
  world::on_ranks(2, [&](Comm& comm) {
    world::Rank rank(c, comm);
    StepReport whole, blocks;
    RANK_CHECK(rank.step(0, whole) == Status::kOk);
    RANK_CHECK(rank.step(1, blocks) == Status::kOk);
    RANK_CHECK(blocks.planned == 2);
    // The vote remains; half a matrix in bf16 goes there, or comes back.
    RANK_CHECK(blocks.bytes_sent + 8 * 24 * 2 <= whole.bytes_sent);
    const std::string text = rank.optimizer().describe(false);
    RANK_CHECK(text.find("those between take blocks") != std::string::npos);
    RANK_CHECK(rank.optimizer().describe(true).find("\"block_plan\":{") != std::string::npos);
  });
}

TEST_CASE("step: step numbers that differ between ranks under blocks are a mismatch, not a hang",
          "[unit][optimizer]") {
  const world::Case c = make_case();
  std::vector<std::string> problems(static_cast<size_t>(c.world));
  world::on_ranks(c.world, [&](Comm& comm) {
    world::Rank rank(c, comm);
    std::string& problem = problems[static_cast<size_t>(comm.rank())];
    StepReport report;
    if (rank.step(0, report) != Status::kOk) problem += "first step; ";
    const world::Tensors before = rank.tensors();
    // Rank 2 takes the coming step for a whole one.
    if (comm.rank() == 2) rank.optimizer().set_steps(2 * kPeriod);
    try {
      rank.step(1, report);
      problem += "no error; ";
    } catch (const Error& e) {
      if (e.status() != Status::kMismatch) problem += cat(status_name(e.status()), "; ");
      for (const char* word : {"committed steps is 6 on rank 2", "1 on rank 0", "block_period 3"})
        if (std::string(e.message()).find(word) == std::string::npos) problem += e.message();
    }
    if (!(before == rank.tensors())) problem += "changed; ";
    rank.optimizer().set_steps(1);
    if (rank.step(1, report) != Status::kOk || report.step != 2) problem += "second step; ";
  });
  for (const std::string& problem : problems) CHECK(problem == "");
}

TEST_CASE("step: blocks that the caller's functions bring to an owner have the same bits",
          "[bits][functions]") {
  world::Case c = make_case();
  const world::Outcome built_in = world::run(c);
  world::Board board(c);
  c.adjust = [&](OptimizerSettings& s, int rank) { board.serve(s, rank); };
  const world::Outcome by_callback = world::run(c);
  CHECK((by_callback.tensors == built_in.tensors));
  for (size_t step = 0; step < by_callback.reports.size(); ++step)
    CHECK(by_callback.reports[step].orthogonalized == built_in.reports[step].orthogonalized);
  // Whole tensors in every step: a gather and a redistribution of each on each rank.
  CHECK(board.calls() == int64_t{2} * 3 * c.steps * c.world);
}

TEST_CASE("step: periods that differ between groups are refused by name", "[unit][optimizer]") {
  OptimizerSettings s;
  s.groups = {GroupSettings::defaults(Role::kMuon), GroupSettings::defaults(Role::kMuon)};
  s.groups[0].name = "attention";
  s.groups[0].blocks.period = 4;
  s.groups[1].name = "mlp";
  s.groups[1].blocks.period = 5;
  CHECK_THROWS_WITH(validate(s, 0, 1), Catch::Contains("group 'mlp'") &&
                                           Catch::Contains("block_period is 5") &&
                                           Catch::Contains("'attention' has 4"));
}
