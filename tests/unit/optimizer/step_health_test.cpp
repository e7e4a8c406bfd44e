#include <catch2/catch.hpp>
#include <limits>

#include "pipeline/trace.hpp"
#include "step_health_cases.hpp"
#include "support/rank_check.hpp"
#include "textbook/textbook.hpp"

// Health statistics: what they say is true, and costs nothing where off.

using namespace muonrt;
using namespace health_cases;

TEST_CASE("health: RMS by plain sums, sigmas by an SVD of what the step took off the weights",
          "[unit][optimizer][health]") {
  world::Case c = measured({.mesh = 5, .scheme = 1, .window = 2}, 1, 1);
  c.settings.transport = DType::kF32;
  c.settings.groups[0].weight_decay = 0;
  c.lr = 0.125;  // the update's bits stand above those of the weights
  c.without_grad = {{3}};
  const Told told = tell(c);
  REQUIRE(told.reports.size() == 1);
  CHECK(told.reports[0].step == 1);
  CHECK_FALSE(told.reports[0].skipped);
  REQUIRE(told.reports[0].matrices.size() == 9);
  for (size_t p = 0; p < 9; ++p) {
    const MatrixHealth& m = told.reports[0].matrices[p];
    INFO(c.params[p].name);
    CHECK(m.param == static_cast<int32_t>(p));
    const int64_t rows = c.params[p].shape[0], cols = c.params[p].shape[1];
    CHECK(m.rows == rows);
    CHECK(m.cols == cols);
    std::vector<double> weights, updates;
    textbook::Matrix o(rows, cols);
    const double scale = textbook::scale_factor(textbook::Scale::kMatchRms, rows, cols);
    for (const float w : floats(told.tensors.params[p])) {
      const auto element = static_cast<int64_t>(weights.size());
      const double before = static_cast<double>(world::value(static_cast<int64_t>(p), element, -1));
      weights.push_back(static_cast<double>(w));
      updates.push_back((before - static_cast<double>(w)) / c.lr);
      o.v[static_cast<size_t>(element)] = updates.back() / scale;
    }
    CHECK(m.weight_rms == Approx(rms(weights)).epsilon(1e-12));
    CHECK(m.nonfinite == 0);
    CHECK(m.updated == (p != 3));
    if (p == 3) {
      CHECK(std::isnan(m.update_rms));
      CHECK(std::isnan(m.deviation));
      continue;
    }
    CHECK(m.update_rms == Approx(rms(updates)).epsilon(1e-4));
    const auto sigmas = textbook::svd(o).s;
    CHECK(m.sigma_max == Approx(sigmas.front()).epsilon(0.01));
    const double deviation = std::max(sigmas.front() - 1, 1 - sigmas.back());
    CHECK(m.deviation == Approx(deviation).epsilon(0.05).margin(1e-4));
    CHECK(std::isnan(m.largest_q));  // standard form
  }
}

TEST_CASE("health: the Gram form tells its largest Q, the standard form has none",
          "[unit][optimizer][health]") {
  world::Case c = measured({}, 1, 1);
  c.settings.groups[0].form = FormChoice::kGram;
  int formed = 0;
  const Told told = tell(c);
  for (const MatrixHealth& m : told.reports[0].matrices) {
    if (m.rows == m.cols) continue;  // a row of one has Q = the slope
    // Q maps singular values up to 1: its elements lie above 1 and below the list's slope at 0.
    CHECK(m.largest_q > 1.0);
    CHECK(m.largest_q < 2000.0);
    ++formed;
  }
  CHECK(formed >= 5);
}

TEST_CASE(
    "health: a skipped step counts the gradients' bad elements, by matrix, and tells no update",
    "[unit][optimizer][health]") {
  world::Case c = measured({.mesh = 8, .scheme = 2, .window = 2}, 2, 2);
  c.without_grad.clear();
  // The second step would be the second committed one. Element 0 of each local shard of "wide".
  const auto spoil = [&](world::Rank& rank, int, int64_t step) {
    if (step != 1) return;
    auto& grad = rank.grad(5);
    if (grad.empty()) return;
    const float bad = std::numeric_limits<float>::infinity();
    std::memcpy(grad.data(), &bad, 4);
  };
  const Told told = tell(c, spoil);
  CHECK(told.equal);
  CHECK(told.reports[0].step == -1);
  const HealthReport& r = told.reports[1];
  CHECK(r.step == 1);
  CHECK(r.skipped);
  CHECK(r.difference.param == -1);
  // "wide" lies in distinct shards on every rank that holds some of it.
  const auto mesh = std::make_shared<Mesh>(c.mesh, std::vector<std::string>{}, c.rank_array);
  const Layout layout = world::layout_of(c.params[5], mesh);
  int64_t shards = 0;
  for (int rank = 0; rank < c.world; ++rank)
    shards += layout.local_numel(rank) > 0 && layout.replica_index(rank) == 0;
  for (const MatrixHealth& m : r.matrices) {
    CHECK_FALSE(m.updated);
    CHECK(m.nonfinite == (m.param == 5 ? shards : 0));
    CHECK(std::isnan(m.update_rms));
    CHECK(std::isnan(m.sigma_max));
    std::vector<double> weights;
    for (const float w : floats(told.tensors.params[static_cast<size_t>(m.param)]))
      weights.push_back(static_cast<double>(w));
    CHECK(m.weight_rms == Approx(rms(weights)).epsilon(1e-12));
  }
}

TEST_CASE("health: one bit that differs in one replica is named by parameter, rank and kind",
          "[unit][optimizer][health]") {
  struct Plant {
    int64_t param;
    int rank;
    Replicated kind;
  };
  // HSDP over 2 x 4: rank r and r + 4 hold the same.
  for (const Plant& plant : {Plant{6, 5, Replicated::kData},
                             {4, 6, Replicated::kMomentum},
                             {10, 4, Replicated::kVariance},
                             {7, 1, Replicated::kData}}) {
    world::Case c = measured({.mesh = 9, .scheme = 1}, 2, 4);
    c.mesh = {2, 4};
    c.world = 8;
    c.rank_array.clear();
    for (size_t i = 0; i < c.params.size(); ++i)
      c.params[i].placements = bits::placements(1, i, 2, c.params[i].shape, c.mesh);
    c.without_grad.clear();
    // The step in which it is planted leaves it as it is: the parameter sits out from there on.
    c.without_grad = {{}, {}, {plant.param}, {plant.param}};
    const Told told = tell(c, [&](world::Rank& rank, int number, int64_t step) {
      if (step != 2 || number != plant.rank) return;
      if (plant.kind == Replicated::kData) {
        RANK_CHECK(!rank.data(plant.param).empty());
        rank.data(plant.param).back() ^= 0x20;
        return;
      }
      const StateKind kind =
          plant.kind == Replicated::kMomentum ? StateKind::kMomentum : StateKind::kVariance;
      const StateView view = rank.optimizer().state(plant.param, kind);
      RANK_CHECK(view.numel > 0);
      static_cast<unsigned char*>(view.data)[1] ^= 0x01;
    });
    INFO("param " << plant.param << ", rank " << plant.rank);
    CHECK(told.equal);
    CHECK(told.reports[1].step == 2);
    CHECK(told.reports[1].difference.param == -1);
    CHECK(told.reports[2].step == 2);  // step 3 does not measure
    const ReplicaDifference& d = told.reports[3].difference;
    CHECK(d.param == plant.param);
    // The later replica is named, and compared with the first.
    CHECK(d.rank == plant.rank % 4 + 4);
    CHECK(d.reference == plant.rank % 4);
    CHECK(d.kind == plant.kind);
  }
}

TEST_CASE("health: master weights and remainders count as the f32 weights that they are",
          "[unit][optimizer][health]") {
  const auto rms_of = [](MasterKind master) {
    world::Case c;
    world::Param param;
    param.name = "w";
    param.shape = {24, 40};
    param.dtype = DType::kBF16;
    param.master_kind = master;
    c.params = {param};
    c.steps = 3;
    c.settings.health_every = 3;
    return tell(c).reports[2].matrices[0].weight_rms;
  };
  const double master = rms_of(MasterKind::kOwned);
  CHECK(rms_of(MasterKind::kRemainder) == master);
  CHECK(rms_of(MasterKind::kNone) != master);  // rounded to bf16
}

TEST_CASE("health: off, and in steps between, nothing is sent, taken or ordered otherwise",
          "[unit][optimizer][health]") {
  struct Counts {
    int64_t bytes, allocations, allocated, objects;
    std::string order;
  };
  const auto count = [](int64_t every, int steps) {
    world::Case c = measured({.mesh = 8, .scheme = 1, .window = 2}, every, steps);
    std::vector<std::vector<Counts>> out(static_cast<size_t>(c.world));
    world::on_ranks(c.world, [&](Comm& comm) {
      world::Rank rank(c, comm);
      const Device& device = rank.optimizer().device();
      for (int64_t step = 0; step < steps; ++step) {
        StepReport report;
        rank.step(step, report);
        RANK_CHECK(report.health == (every > 0 && (step + 1) % every == 0));
        out[static_cast<size_t>(comm.rank())].push_back(
            {report.bytes_sent, device.allocations(), device.allocated_bytes(), device.objects(),
             to_text(rank.optimizer().pipeline().order())});
      }
    });
    return out;
  };
  const auto off = count(0, 4), on = count(3, 4), always = count(1, 4);
  for (size_t rank = 0; rank < off.size(); ++rank) {
    for (const size_t step : {0, 1, 3}) {
      CHECK(on[rank][step].bytes == off[rank][step].bytes);
      CHECK(on[rank][step].order == off[rank][step].order);
    }
    // What is taken at creation stays; the first step may make queues longer.
    for (const auto& all : {on, always}) {
      CHECK(all[rank][3].allocations == all[rank][0].allocations);
      CHECK(all[rank][3].allocated == all[rank][0].allocated);
    }
    CHECK(always[rank][3].objects == always[rank][0].objects);
    CHECK(off[rank][3].allocated < on[rank][3].allocated);
  }
}

TEST_CASE("health: ranks that ask for different intervals are refused",
          "[unit][optimizer][health]") {
  world::Case c = measured({.mesh = 1});
  c.adjust = [](OptimizerSettings& s, int rank) { s.health_every = rank + 1; };
  try {
    world::run(c);
    FAIL("different intervals were accepted");
  } catch (const Error& e) {
    CHECK(e.status() == Status::kMismatch);
    CHECK_THAT(e.message(), Catch::Contains("health_every"));
  }
}
