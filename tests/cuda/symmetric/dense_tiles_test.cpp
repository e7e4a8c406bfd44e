// Tests dense products with launch settings that the test chooses: grids, pairs, and several
// products in one launch.

#include <catch2/catch.hpp>

#include "control.hpp"
#include "cuda/device/cuda_device.hpp"
#include "cuda/symmetric/dense_cases.hpp"
#include "cuda/symmetric/symmetric_products.hpp"

using namespace muonrt;
using namespace muonrt::cuda;
using namespace cuda_test;

namespace {

constexpr auto kProvider = SymmetricProvider::kSm90;

struct Run {
  std::vector<std::vector<uint16_t>> results;
  int64_t wrong = 0;
  emulator::Launched launched;
};

/// Computes all products of a list in one call.
Run run(const std::vector<DenseCase>& cases, int sms = 4, Sm90Tuning tuning = {},
        bool leaves_sms = false) {
  tuning.dense = true;
  Machine machine(make_device(kProvider));
  SymmetricProducts products(*machine.device, sms, tuning, leaves_sms);
  std::vector<DenseTrial> trials;
  std::vector<Product> list;
  for (const DenseCase& c : cases) {
    trials.emplace_back(machine, c, static_cast<uint64_t>(c.m * 1000 + c.k));
    list.push_back(trials.back().product);
    CHECK(products.takes(list.back()));
  }
  const emulator::Launched before = emulator::launched();
  products.multiply(list, handle_of(machine.on()));
  machine.finish();
  const emulator::Launched now = emulator::launched();
  Run out;
  out.launched = {now.kernels - before.kernels, now.blocks - before.blocks,
                  now.early - before.early, now.clustered - before.clustered};
  for (const DenseTrial& trial : trials) {
    out.wrong += trial.wrong(machine);
    out.results.push_back(trial.result(machine));
  }
  return out;
}

}  // namespace

TEST_CASE("dense tiles: all grids compute the same bits, with pairs and without", "[emulated]") {
  const std::vector<DenseCase> cases = {{300, 700, 130, 2, 1.0f, 3.0f},
                                        {513, 257, 72, 1, -2.0f, 1.0f, DType::kF16},
                                        {128, 1100, 65, 1},
                                        {641, 128, 257, 1, 1.0f, 1.0f}};
  for (const DenseCase& c : cases) {
    INFO(c.name());
    const Run first = run({c});
    CHECK(first.wrong == 0);
    for (const int sms : {2, 6, 12, 40})
      for (const std::optional<bool>& pairs : {std::optional<bool>(), {true}, {false}})
        CHECK(run({c}, sms, {.pairs = pairs, .raster = sms == 6 ? 1 : 0}).results == first.results);
  }
}

TEST_CASE("dense tiles: depths of one to nine stages, with and without D, and a late consumer",
          "[emulated]") {
  for (int64_t stages = 1; stages <= 9; ++stages)
    for (const float beta : {0.0f, 3.0f}) {
      const DenseCase c = {385, 650, stages * kStageDepth - 3, 1, 1.0f, beta};
      INFO(c.name());
      const int skew = static_cast<int>(stages % 4);
      CHECK(run({c}, 4, {.pairs = stages % 2 == 0, .skew = skew}).wrong == 0);
    }
}

TEST_CASE("dense tiles: products of different shapes, depths and batches share a launch",
          "[emulated]") {
  const std::vector<DenseCase> cases = {{130, 270, 70, 2, 1.0f, 2.0f},
                                        {33, 300, 12, 5},
                                        {260, 390, 260, 1, 2.0f},
                                        {257, 600, 90, 1, -2.0f, 1.0f}};
  const Run together = run(cases, 6);
  CHECK(together.wrong == 0);
  CHECK(together.launched.kernels == 1);
  CHECK(together.launched.blocks == 6);
  for (size_t i = 0; i < cases.size(); ++i)
    CHECK(run({cases[i]}).results[0] == together.results[i]);
  // Products of another dtype need another kernel.
  std::vector<DenseCase> two = cases;
  two[1].dtype = DType::kF16;
  const Run apart = run(two);
  CHECK(apart.wrong == 0);
  CHECK(apart.launched.kernels == 2);
}

TEST_CASE("dense tiles: launches are early, and have clusters if there are pairs or free SMs",
          "[emulated]") {
  const DenseCase square = {256, 256, 70}, one_row = {128, 512, 70}, one_col = {512, 128, 70};
  const auto clustered = [](const DenseCase& c, std::optional<bool> pairs, bool leaves_sms) {
    // One pair is cut into two jobs if the blocks would otherwise be idle, so the grid is small.
    const Run got = run({c}, 2, {.pairs = pairs}, leaves_sms);
    CHECK(got.wrong == 0);
    CHECK(got.launched.early == 1);
    return got.launched.clustered;
  };
  CHECK(clustered(square, {}, false) == 1);
  CHECK(clustered(square, false, false) == 0);
  CHECK(clustered(square, false, true) == 1);
  CHECK(clustered(one_row, {}, false) == 0);
  CHECK(clustered(one_row, {}, true) == 1);
  CHECK(clustered(one_col, {}, false) == 0);
  CHECK(run({square}, 2, {.early = false}).launched.early == 0);
}

TEST_CASE("dense tiles: SMs that are reserved for a communicator make the grid smaller",
          "[emulated]") {
  emulator::pretend_sms(12);
  std::vector<uint16_t> first;
  for (const auto& [reserved, blocks] : {std::pair{0, 12}, {1, 10}, {8, 4}, {1000, 2}}) {
    CAPTURE(reserved);
    Machine machine(make_device(kProvider, reserved, {.dense = true}));
    const DenseTrial trial(machine, {530, 700, 90, 2, 1.0f, 3.0f}, 7);
    const int64_t before = emulator::launched().blocks;
    machine.ops().multiply(machine.on(), trial.product);
    CHECK(emulator::launched().blocks - before == blocks);
    CHECK(trial.wrong(machine) == 0);
    if (first.empty()) first = trial.result(machine);
    CHECK(trial.result(machine) == first);
  }
  emulator::pretend_sms(2);
}

TEST_CASE("dense tiles: symmetric and dense products of one call are both computed", "[emulated]") {
  Machine machine(make_device(kProvider, 0, {.dense = true}));
  const SymmetricTrial symmetric(machine, {300, 90, 2, true, 1.0f, 2.0f, 7.0f}, 5);
  const DenseTrial dense(machine, {300, 420, 300, 2, 1.0f, 3.0f}, 6);
  const std::vector<Product> list = {dense.product, symmetric.product};
  const int64_t before = emulator::launched().kernels;
  machine.ops().multiply(machine.on(), list);
  machine.finish();
  CHECK(emulator::launched().kernels - before == 2);
  CHECK(symmetric.wrong(machine) == 0);
  CHECK(dense.wrong(machine) == 0);
}

TEST_CASE("dense tiles: the kernel computes only A B in half precision, and only if chosen",
          "[emulated]") {
  Machine machine(make_device(kProvider));
  const Product fits = DenseTrial(machine, {40, 50, 40, 1, 1.0f, 2.0f}, 1).product;
  const auto taken = [&](bool dense, const auto& change) {
    Product p = fits;
    change(p);
    return SymmetricProducts(*machine.device, 2, {.dense = dense}).takes(p);
  };
  CHECK(taken(true, [](Product&) {}));
  CHECK_FALSE(taken(false, [](Product&) {}));
  CHECK_FALSE(taken(true, [](Product& p) { p.gamma = 1.0f; }));
  CHECK_FALSE(taken(true, [](Product& p) { p.transpose_b = true; }));
  CHECK_FALSE(taken(true, [](Product& p) { p.b.dtype = DType::kF16; }));
  CHECK_FALSE(taken(true, [](Product& p) { p.d.dtype = DType::kF32; }));
  CHECK_FALSE(
      taken(true, [](Product& p) { p.a.dtype = p.b.dtype = p.c.dtype = p.d.dtype = DType::kF32; }));
}
