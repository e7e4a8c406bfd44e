#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <vector>

#include "pipeline/trace.hpp"
#include "reference/reference.hpp"
#include "support/attempts.hpp"
#include "support/bits_cases.hpp"
#include "support/rank_check.hpp"

// Tests that health statistics are correct and equal on every mesh, and that they cost nothing if
// they are off.

using namespace muonrt;

namespace {

world::Case measured(const bits::Factors& f, int64_t every = 1, int steps = 2) {
  world::Case c = bits::make(f, false, steps);
  c.settings.health_every = every;
  return c;
}

/// The reports of rank 0 after each step, and whether all ranks had bitwise identical reports.
struct ReportedHealth {
  std::vector<HealthReport> reports;
  world::Tensors tensors;
  bool equal = true;
};

bool same_bits(double a, double b) { return std::memcmp(&a, &b, sizeof a) == 0; }

bool same(const HealthReport& a, const HealthReport& b) {
  bool equal = a.step == b.step && a.skipped == b.skipped &&
               a.matrices.size() == b.matrices.size() && a.difference.param == b.difference.param &&
               a.difference.rank == b.difference.rank;
  for (size_t i = 0; equal && i < a.matrices.size(); ++i) {
    const MatrixHealth &x = a.matrices[i], &y = b.matrices[i];
    equal = x.param == y.param && x.index == y.index && x.rows == y.rows && x.cols == y.cols &&
            x.updated == y.updated && x.nonfinite == y.nonfinite &&
            same_bits(x.update_rms, y.update_rms) && same_bits(x.weight_rms, y.weight_rms) &&
            same_bits(x.sigma_min, y.sigma_min) && same_bits(x.sigma_max, y.sigma_max) &&
            same_bits(x.deviation, y.deviation) && same_bits(x.largest_q, y.largest_q);
  }
  return equal;
}

/// Runs the steps of a case.
/// @param between  Called on every rank after its gradients are filled.
ReportedHealth run_and_report(const world::Case& c,
                              const std::function<void(world::Rank&, int, int64_t)>& between = {}) {
  ReportedHealth out;
  std::vector<std::vector<HealthReport>> all(static_cast<size_t>(c.world));
  std::vector<std::vector<bool>> seen;
  std::mutex mutex;
  world::on_each(c, [&](world::Rank& rank, Comm& comm) {
    for (int64_t step = 0; step < c.steps; ++step) {
      rank.fill_gradients(step);
      if (between) between(rank, comm.rank(), step);
      StepReport report;
      rank.step_only(step, report);
      all[static_cast<size_t>(comm.rank())].push_back(rank.optimizer().health());
    }
    const std::lock_guard lock(mutex);
    rank.add_to(out.tensors, seen);  // replicas may differ, because some cases plant a difference
  });
  out.reports = all[0];
  for (const auto& reports : all)
    for (size_t s = 0; s < reports.size(); ++s)
      out.equal = out.equal && same(reports[s], all[0][s]);
  return out;
}

std::vector<float> floats(const std::vector<unsigned char>& bytes) {
  std::vector<float> out(bytes.size() / 4);
  std::memcpy(out.data(), bytes.data(), bytes.size());
  return out;
}

double rms(const std::vector<double>& v) {
  double sum = 0;
  for (const double x : v) sum += x * x;
  return std::sqrt(sum / static_cast<double>(v.size()));
}

}  // namespace

TEST_CASE("health: RMS equals float64 sums, sigmas equal an SVD of the update",
          "[unit][optimizer][health]") {
  world::Case c = measured({.mesh = 5, .scheme = 1, .window = 2}, 1, 1);
  c.settings.transport_dtype = DType::kF32;
  c.settings.groups[0].weight_decay = 0;
  c.lr = 0.125;  // makes the update large compared with rounding errors of the weights
  c.inactive_params = {{3}};
  const ReportedHealth reported = run_and_report(c);
  REQUIRE(reported.reports.size() == 1);
  CHECK(reported.reports[0].step == 1);
  CHECK_FALSE(reported.reports[0].skipped);
  REQUIRE(reported.reports[0].matrices.size() == 9);
  for (size_t p = 0; p < 9; ++p) {
    const MatrixHealth& m = reported.reports[0].matrices[p];
    INFO(c.params[p].name);
    CHECK(m.param == static_cast<int32_t>(p));
    const int64_t rows = c.params[p].shape[0], cols = c.params[p].shape[1];
    CHECK(m.rows == rows);
    CHECK(m.cols == cols);
    std::vector<double> weights, updates;
    reference::Matrix o(rows, cols);
    const double scale = reference::scale_factor(reference::Scale::kMatchRms, rows, cols);
    for (const float w : floats(reported.tensors.params[p])) {
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
    const auto sigmas = reference::svd(o).s;
    CHECK(m.sigma_max == Approx(sigmas.front()).epsilon(0.01));
    const double deviation = std::max(sigmas.front() - 1, 1 - sigmas.back());
    CHECK(m.deviation == Approx(deviation).epsilon(0.05).margin(1e-4));
    CHECK(std::isnan(m.largest_q));  // the standard form has no Q
  }
}

TEST_CASE("health: the Gram form reports its largest Q, the standard form has none",
          "[unit][optimizer][health]") {
  world::Case c = measured({}, 1, 1);
  c.settings.groups[0].form = FormChoice::kGram;
  int formed = 0;
  const ReportedHealth reported = run_and_report(c);
  for (const MatrixHealth& m : reported.reports[0].matrices) {
    if (m.rows == m.cols) continue;  // if the matrix has a single row, Q equals the slope
    // The matrix Q multiplies singular values up to about 1, so its largest element is between 1
    // and the slope of the coefficients at 0.
    CHECK(m.largest_q > 1.0);
    CHECK(m.largest_q < 2000.0);
    ++formed;
  }
  CHECK(formed >= 5);
}

TEST_CASE(
    "health: a skipped step counts non-finite elements of gradients by matrix, and has no update",
    "[unit][optimizer][health]") {
  world::Case c = measured({.mesh = 8, .scheme = 2, .window = 2}, 2, 2);
  c.inactive_params.clear();
  // The second step is skipped, because element 0 of the gradient is infinite in each local shard
  // of "wide".
  const auto spoil = [&](world::Rank& rank, int, int64_t step) {
    if (step != 1) return;
    auto& grad = rank.grad(5);
    if (grad.empty()) return;
    const float bad = std::numeric_limits<float>::infinity();
    std::memcpy(grad.data(), &bad, 4);
  };
  const ReportedHealth reported = run_and_report(c, spoil);
  CHECK(reported.equal);
  CHECK(reported.reports[0].step == -1);
  const HealthReport& r = reported.reports[1];
  CHECK(r.step == 1);
  CHECK(r.skipped);
  CHECK(r.difference.param == -1);
  // Every rank that holds elements of "wide" has a different shard of it.
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
    for (const float w : floats(reported.tensors.params[static_cast<size_t>(m.param)]))
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
  // In this HSDP layout over 2 x 4 ranks, ranks r and r + 4 hold the same shards.
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
    c.inactive_params.clear();
    // The parameter is inactive from this step on, so the planted bit stays.
    c.inactive_params = {{}, {}, {plant.param}, {plant.param}};
    const ReportedHealth reported =
        run_and_report(c, [&](world::Rank& rank, int number, int64_t step) {
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
    CHECK(reported.equal);
    CHECK(reported.reports[1].step == 2);
    CHECK(reported.reports[1].difference.param == -1);
    CHECK(reported.reports[2].step == 2);  // step 3 collects no statistics
    const ReplicaDifference& d = reported.reports[3].difference;
    CHECK(d.param == plant.param);
    // The report names the second replica, and the first replica as its reference.
    CHECK(d.rank == plant.rank % 4 + 4);
    CHECK(d.reference == plant.rank % 4);
    CHECK(d.kind == plant.kind);
  }
}

TEST_CASE("health: master weights and remainders count as f32 weights",
          "[unit][optimizer][health]") {
  const auto rms_of = [](MasterKind master) {
    world::Case c;
    world::Param& param = world::add(c, "w", {24, 40}, {});
    param.dtype = DType::kBF16;
    param.master_kind = master;
    c.steps = 3;
    c.settings.health_every = 3;
    return run_and_report(c).reports[2].matrices[0].weight_rms;
  };
  const double master = rms_of(MasterKind::kOwned);
  CHECK(rms_of(MasterKind::kRemainder) == master);
  CHECK(rms_of(MasterKind::kNone) != master);  // these weights are rounded to bf16
}

TEST_CASE("health: steps without statistics send, allocate and order nothing else",
          "[unit][optimizer][health]") {
  struct Counts {
    int64_t bytes, allocations, allocated, objects;
    std::string order;
  };
  const auto count = [](int64_t every, int steps) {
    world::Case c = measured({.mesh = 8, .scheme = 1, .window = 2}, every, steps);
    return world::on_each(c, [&](world::Rank& rank, Comm&) {
      const Device& device = rank.optimizer().device();
      std::vector<Counts> out;
      for (int64_t step = 0; step < steps; ++step) {
        StepReport report;
        rank.step(step, report);
        RANK_CHECK(report.has_health == (every > 0 && (step + 1) % every == 0));
        out.push_back({report.bytes_sent, device.allocations(), device.allocated_bytes(),
                       device.objects(), to_text(rank.optimizer().pipeline().order())});
      }
      return out;
    });
  };
  const auto off = count(0, 4), on = count(3, 4), always = count(1, 4);
  for (size_t rank = 0; rank < off.size(); ++rank) {
    for (const size_t step : {0, 1, 3}) {
      CHECK(on[rank][step].bytes == off[rank][step].bytes);
      CHECK(on[rank][step].order == off[rank][step].order);
    }
    // All memory is allocated at creation, except that queues may grow in the first step.
    for (const auto& all : {on, always}) {
      CHECK(all[rank][3].allocations == all[rank][0].allocations);
      CHECK(all[rank][3].allocated == all[rank][0].allocated);
    }
    CHECK(always[rank][3].objects == always[rank][0].objects);
    CHECK(off[rank][3].allocated < on[rank][3].allocated);
  }
}

TEST_CASE("health: numbers are bitwise identical on every mesh, and steps do not change",
          "[bits][health][nosan]") {
  for (const int variant : {0, 1, 3}) {
    bits::Factors one_rank;
    one_rank.variant = variant;
    const ReportedHealth expected = run_and_report(measured(one_rank));
    REQUIRE(expected.equal);
    CHECK((expected.tensors == bits::reference_ops(false, 2, variant)));
    for (bits::Factors f : {bits::Factors{.mesh = 4, .threads = 2},
                            {.mesh = 6, .scheme = 1, .window = 1, .chunk = 1, .commit = 1},
                            {.mesh = 8, .scheme = 5, .window = 2},
                            {.mesh = 10, .scheme = 3, .chunk = 2},
                            {.mesh = 9, .scheme = 4, .chunk = 1, .commit = 1, .threads = 2}}) {
      f.variant = variant;
      world::Case c = measured(f);
      if (f.scheme == 1) c.settings.replica_mode = ReplicaMode::kEach;
      if (f.scheme == 5) c.settings.replica_mode = ReplicaMode::kEveryRank;
      INFO(c.describe() << ", variant " << variant);
      const ReportedHealth reported = run_and_report(c);
      CHECK(reported.equal);
      REQUIRE(reported.reports.size() == expected.reports.size());
      for (size_t s = 0; s < reported.reports.size(); ++s)
        CHECK(same(reported.reports[s], expected.reports[s]));
      CHECK((reported.tensors == expected.tensors));
    }
  }
}

TEST_CASE("health: experts, parts, partial gradients and all forms of weights on meshes",
          "[bits][health][nosan]") {
  const Placement r{PlacementKind::kReplicate, 0, 1}, p{PlacementKind::kPartial, 0, 1};
  const auto shard = [](int dim) { return Placement{PlacementKind::kShard, dim, 1}; };
  const auto make = [&](std::vector<int64_t> mesh, const std::vector<Placement>& placements) {
    world::Case c = world::on_mesh(std::move(mesh));
    c.steps = 1;
    c.settings.health_every = 1;
    c.settings.poison = true;
    const auto add = [&](const char* name, std::vector<int64_t> shape, MasterKind master,
                         View view = View::kNone) {
      world::Param& param = world::add(c, name, std::move(shape), placements);
      param.dtype = master == MasterKind::kNone ? DType::kF32 : DType::kBF16;
      param.master_kind = master;
      param.view = view;
      param.partial_grads = 2;
    };
    add("plain", {8, 12}, MasterKind::kNone);
    add("experts", {3, 6, 8}, MasterKind::kNone, View::kStack);
    add("master", {10, 4}, MasterKind::kOwned);
    add("remainder", {6, 16}, MasterKind::kRemainder);
    add("stochastic", {8, 8}, MasterKind::kStochastic);
    c.params[0].parts = {{"top", {{0, 5}}, {{0, 12}}, 1.0, 2.0},
                         {"rest", {{5, 8}}, {{0, 12}}, 1.0, 2.0}};
    return c;
  };
  const world::Case one_rank = make({1}, {r});
  const ReportedHealth expected = run_and_report(one_rank);
  REQUIRE(expected.reports[0].matrices.size() == 2 + 3 + 3);
  // These parameters have no master weights, so the weights are read from the parameters.
  const auto& experts = expected.tensors.params[1];
  for (size_t e = 0; e < 3; ++e) {
    const MatrixHealth& m = expected.reports[0].matrices[2 + e];
    CHECK(m.param == 1);
    CHECK(m.index == static_cast<int64_t>(e));
    std::vector<double> weights;
    for (const float w : floats({experts.begin() + static_cast<int64_t>(e) * 192,
                                 experts.begin() + static_cast<int64_t>(e + 1) * 192}))
      weights.push_back(static_cast<double>(w));
    CHECK(m.weight_rms == Approx(rms(weights)).epsilon(1e-12));
  }
  for (const world::Case& c : {make({3}, {shard(0)}), make({2, 2}, {r, shard(1)}),
                               make({2, 2}, {p, shard(0)}), make({2, 3}, {p, r})}) {
    INFO(c.describe());
    const ReportedHealth reported = run_and_report(c);
    CHECK(reported.equal);
    CHECK(same(reported.reports[0], expected.reports[0]));
  }
}
