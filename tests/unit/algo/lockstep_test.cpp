// Tests Newton-Schulz on several batches in lockstep: each step runs for all batches together.

#include "algo/lockstep.hpp"

#include <atomic>
#include <catch2/catch.hpp>

#include "support/rank_check.hpp"
#include "support/world.hpp"
#include "support/wrapped_device.hpp"
#include "unit/algo/lockstep_cases.hpp"

using namespace muonrt;

namespace {

/// Records the inner dimensions of the products in each call to `multiply`.
class CountingOps : public wrapped::Ops {
 public:
  using wrapped::Ops::Ops;
  void multiply(Stream& stream, std::span<const Product> products) override {
    calls.emplace_back();
    for (const Product& p : products) {
      calls.back().push_back(p.a.cols);
      symmetric_calls += &p == &products.front() && p.symmetric && p.alpha != 0.0f;
    }
    if (products.front().c.data) inner_.multiply(stream, products);
  }
  std::vector<std::vector<int64_t>> calls;
  int64_t symmetric_calls = 0;
};

/// Returns a step of empty matrices. Its inner dimension identifies the step.
IterationStep make_step(int64_t depth, bool symmetric, std::function<void()> then = {}) {
  IterationStep step;
  step.products.resize(1);
  step.products[0].a.cols = depth;
  step.products[0].symmetric = symmetric;
  if (then) step.then.push_back(std::move(then));
  return step;
}

}  // namespace

TEST_CASE("lockstep: symmetric products of all iterations are grouped, others run first",
          "[unit][newton-schulz]") {
  auto backend = backends::host(1);
  CountingOps ops(*backend.ops);
  std::vector<int> order;
  std::vector<std::vector<IterationStep>> iterations(3);
  iterations[0].push_back(make_step(1, true, [&] { order.push_back(1); }));
  iterations[0].push_back(make_step(2, true));
  iterations[1].push_back(make_step(11, false, [&] { order.push_back(11); }));
  iterations[1].push_back(make_step(12, false));
  iterations[1].push_back(make_step(13, true));
  iterations[1].push_back(make_step(14, false));
  run(ops, *backend.stream, in_lockstep(iterations));
  CHECK(ops.calls == std::vector<std::vector<int64_t>>{{11}, {12}, {1, 13}, {14}, {2}});
  CHECK(order == std::vector<int>{11, 1});
}

TEST_CASE("lockstep: a product with alpha 0 is not a symmetric product", "[unit][newton-schulz]") {
  auto backend = backends::host(1);
  CountingOps ops(*backend.ops);
  std::vector<std::vector<IterationStep>> iterations(2);
  iterations[0] = {make_step(1, true), make_step(2, true)};
  iterations[0][0].products[0].alpha = 0.0f;
  iterations[1] = {make_step(3, true)};
  run(ops, *backend.stream, in_lockstep(iterations));
  CHECK(ops.calls == std::vector<std::vector<int64_t>>{{1}, {2, 3}});
}

TEST_CASE("lockstep: the products of a step are in one call", "[unit][newton-schulz]") {
  auto backend = backends::host(1);
  CountingOps ops(*backend.ops);
  std::vector<std::vector<IterationStep>> iterations(2);
  iterations[0] = {make_step(1, true), make_step(2, true)};
  iterations[0][0].products.push_back(make_step(3, true).products[0]);
  iterations[1] = {make_step(4, true)};
  run(ops, *backend.stream, in_lockstep(iterations));
  CHECK(ops.calls == std::vector<std::vector<int64_t>>{{1, 3, 4}, {2}});
  CHECK(ops.symmetric_calls == 2);
}

TEST_CASE("newton-schulz: batches in lockstep give bitwise the same results as separately",
          "[unit][newton-schulz][bits]") {
  const auto jobs = lockstep_cases::jobs();
  for (auto& backend : backends::all()) {
    const auto together = runner::orthogonalize(backend, jobs);
    for (size_t i = 0; i < jobs.size(); ++i) {
      INFO(backend.name << ", job " << i);
      const auto alone = runner::orthogonalize(backend, {jobs[i]})[0];
      CHECK(lockstep_cases::same_bits(together[i], alone));
    }
  }
}

TEST_CASE("newton-schulz: lockstep has as many symmetric calls as the longest iteration",
          "[unit][newton-schulz]") {
  const auto jobs = lockstep_cases::jobs();
  int64_t longest = 0, all = 0;
  const auto symmetric_calls = [&](const std::vector<runner::Job>& list) {
    auto backend = backends::host(1);
    CountingOps ops(*backend.ops);
    backend.ops = &ops;
    runner::orthogonalize(backend, list);
    return ops.symmetric_calls;
  };
  for (const runner::Job& job : jobs) {
    const int64_t alone = symmetric_calls({job});
    longest = std::max(longest, alone);
    all += alone;
  }
  CHECK(symmetric_calls(jobs) == longest);
  CHECK(all > 3 * longest);
}

// The following cases test the launch limits of a device, and how many calls the pipeline makes.

namespace {

/// The number of calls to `multiply` on all ranks.
struct Calls {
  std::atomic<int64_t> all{0}, mixed{0};
};

/// The host's ops with different launch limits.
class LimitedOps : public wrapped::Ops {
 public:
  LimitedOps(muonrt::Ops& inner, LaunchLimits limits, Calls& calls)
      : wrapped::Ops(inner), limits_(limits), calls_(calls) {}
  LaunchLimits launch_limits() const override { return limits_; }
  void multiply(Stream& s, std::span<const Product> products) override {
    ++calls_.all;
    calls_.mixed += products.size() > 1;
    inner_.multiply(s, products);
  }

 private:
  LaunchLimits limits_;
  Calls& calls_;
};

/// Returns a case with several shapes, whose groups have different coefficients, forms and dtypes.
/// Its plan has about three chunks.
world::Case make_case() {
  world::Case c;
  c.mesh = {2};
  c.world = 2;
  c.steps = 3;
  c.settings.chunk_bytes = 12000;
  c.settings.health_every = 2;
  c.settings.poison = true;
  for (int i = 0; i < 3; ++i) c.settings.groups.push_back(GroupSettings::defaults(Role::kMuon));
  c.settings.groups[1].form = FormChoice::kGram;
  c.settings.groups[1].iteration_dtype = DType::kBF16;
  c.settings.groups[1].normuon_axis = NormuonAxis::kRows;
  c.settings.groups[2].coefficients = CoefficientFamily::kKellerJordan;
  c.settings.groups[2].row_scaling = RowScaling::kAol;
  const std::vector<int64_t> shapes[] = {{24, 40}, {40, 24}, {16, 64}, {5, 7},  {24, 40},
                                         {33, 12}, {1, 30},  {16, 64}, {50, 50}};
  int number = 0;
  for (const auto& shape : shapes) {
    c.params.push_back(
        world::matrix(cat("w", number), shape, {{PlacementKind::kShard, number % 2, 1}}));
    ++number;
  }
  c.adjust = [](OptimizerSettings& s, int) {
    for (size_t i = 0; i < s.params.size(); ++i) s.params[i].group = static_cast<int32_t>(i % 3);
  };
  return c;
}

world::Tensors run(const world::Case& c, LaunchLimits limits, Calls& calls, int64_t* bytes) {
  std::vector<std::vector<bool>> seen;
  std::mutex mutex;
  world::Tensors out;
  world::on_ranks(c.world, [&](Comm& comm) {
    world::Rank rank(c, comm, [&](const OptimizerSettings& s) -> std::unique_ptr<Device> {
      return std::make_unique<wrapped::Device>(
          world::host_device(s), [&](muonrt::Ops& inner) -> std::unique_ptr<muonrt::Ops> {
            return std::make_unique<LimitedOps>(inner, limits, calls);
          });
    });
    StepReport report;
    for (int step = 0; step < c.steps; ++step) RANK_CHECK(rank.step(step, report) == Status::kOk);
    const std::lock_guard lock(mutex);
    rank.add_to(out, seen);
    *bytes = std::max(*bytes, rank.optimizer().device().allocated_bytes());
  });
  return out;
}

}  // namespace

TEST_CASE("lockstep: grouped launches of a chunk give bitwise the same results as separate ones",
          "[unit][pipeline][bits]") {
  const world::Case c = make_case();
  Calls separate;
  int64_t separate_bytes = 0;
  const world::Tensors expected =
      run(c, {.max_elements = 0, .mixes_shapes = false}, separate, &separate_bytes);
  CHECK(separate.mixed == 0);
  int64_t fewest = separate.all;
  for (const int64_t elements : {0, 1000, 2500, 1 << 20}) {
    for (const bool shapes : {false, true}) {
      INFO(elements << " elements, shapes " << shapes);
      Calls calls;
      int64_t bytes = 0;
      CHECK(run(c, {.max_elements = elements, .mixes_shapes = shapes}, calls, &bytes) == expected);
      CHECK((calls.mixed > 0) == (shapes && elements > 0));
      CHECK(calls.all <= (shapes ? fewest : separate.all.load()));
      if (shapes) fewest = calls.all;
      // An element of a square matrix needs 10 bytes, and 16 more for the buffers r, z, q and
      // spare. The padding of small matrices can double this.
      CHECK(bytes <= separate_bytes + 2 * 26 * elements);
    }
  }
  CHECK(2 * fewest < separate.all);
}
