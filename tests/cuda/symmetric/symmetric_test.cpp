// muonrt's own symmetric products, through the op.

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <utility>

#include "cuda/symmetric/symmetric_draws.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

/// Elements that are wrong after this machine has computed the product.
int64_t wrong(Machine& machine, const SymmetricCase& c, const SymmetricTrial& trial) {
  trial.wipe(machine);
  machine.ops().reserve(c.n, c.n, c.k, c.dtype);
  machine.ops().multiply(machine.on(), trial.product);
  machine.finish();
  return trial.wrong(machine);
}
int64_t wrong(const SymmetricKind& kind, const SymmetricCase& c) {
  Machine machine(kind.device());
  return wrong(machine, c, {machine, c, static_cast<uint64_t>(c.n * 1000 + c.k)});
}

/// The kinds of tiles that a result of this size has on a grid of two blocks: squares; wide ones on
/// the diagonal; pairs beside it.
int64_t tiles_on_two_blocks(int64_t n) { return n <= 128 ? 0 : n <= 384 ? 1 : 2; }

}  // namespace

TEST_CASE("symmetric product: exact on integers, odd sizes, all epilogues, gaps untouched",
          "[cuda]") {
  Coverage met;
  const auto kinds = symmetric_kinds();
  const auto try_all = [&](const SymmetricCase& c) {
    for (const SymmetricKind& kind : kinds) {
      INFO(c.name() << ", " << kind.name());
      REQUIRE(wrong(kind, c) == 0);
    }
  };
  Deck batches(4, 0), large(kEpilogues, 1);
  std::map<int64_t, Deck> of_depth;
  for (const int64_t k : {1, 31, 33, 72}) of_depth[k] = Deck(kEpilogues, static_cast<uint64_t>(k));
  for (const int64_t n : {1, 2, 7, 8, 9, 31, 63, 64, 65, 127, 128, 129, 130, 191, 255, 256, 257})
    for (auto& [k, epilogues] : of_depth) {
      const SymmetricCase c = with_epilogue({n, k, 1 + batches.next()}, epilogues.next());
      met.note({k, epilogue_of(c)});
      try_all(c);
    }
  for (const int64_t n : {384, 385, 513, 600})
    try_all(with_epilogue({n, 40 + n % 7, 1}, large.next()));
  CHECK(met.least(4 * kEpilogues) >= 4);
}

/// Every case by every kind of product, on machines that one n shares.
void try_drawn(const std::vector<SymmetricCase>& cases) {
  const auto kinds = symmetric_kinds();
  std::vector<std::unique_ptr<Machine>> machines;
  int64_t last = 0;
  for (const SymmetricCase& c : cases) {
    if (kinds.empty()) return;
    if (std::exchange(last, c.n) != c.n) {
      machines.clear();
      for (const SymmetricKind& kind : kinds) {
        machines.push_back(std::make_unique<Machine>(kind.device()));
        machines.back()->ops().reserve(c.n, c.n, kMostDepth, DType::kBF16);
      }
    }
    const SymmetricNumbers numbers(c, static_cast<uint64_t>(c.n * 4 + c.count));
    const SymmetricTrial trial(*machines[0], c, numbers);
    for (size_t i = 0; i < kinds.size(); ++i) {
      INFO(c.name() << ", " << kinds[i].name());
      REQUIRE(wrong(*machines[i], c, trial) == 0);
    }
  }
}

TEST_CASE(
    "symmetric product: exact on integers for every n to 192, batches 1 to 4, and for every third "
    "n "
    "to 600 in one of them",
    "[cuda][every]") {
  Coverage met, dtypes;
  const std::vector<SymmetricCase> cases = drawn_cases(Sweep::kOp, 192, 3);
  for (const SymmetricCase& c : cases) {
    const auto depth = static_cast<int64_t>(depth_of(c)), tiles = tiles_on_two_blocks(c.n);
    met.note({depth, epilogue_of(c), c.count});
    dtypes.note({depth, epilogue_of(c), tiles});
  }
  CHECK(met.least(3 * kEpilogues * 4) >= 4);
  CHECK(dtypes.least(3 * kEpilogues * 3) >= 2);
  try_drawn(cases);
}

TEST_CASE("symmetric product: exact on integers for every n to 600, batches 1 to 4",
          "[cuda][.full]") {
  const std::vector<SymmetricCase> cases = drawn_cases(Sweep::kOp);
  Coverage met, dtypes;
  for (const SymmetricCase& c : cases) {
    const auto depth = static_cast<int64_t>(depth_of(c)), tiles = tiles_on_two_blocks(c.n);
    met.note({depth, epilogue_of(c), c.count, tiles});
    dtypes.note({depth, epilogue_of(c), tiles, c.dtype == DType::kF16});
  }
  CHECK(met.least(3 * kEpilogues * 4 * 3) >= 3);
  CHECK(dtypes.least(3 * kEpilogues * 3 * 2) >= 2);
  try_drawn(cases);
}

// The emulated program has them by way of small grids (symmetric_launch_test,
// symmetric_tiles_test).
TEST_CASE("symmetric product: exact on integers in the large tiles of a GPU", "[cuda]") {
  if (is_emulated()) return;
  for (const Tiles tiles : {Tiles::kLarge, Tiles::kMedium}) {
    for (SymmetricCase c : tiles == Tiles::kLarge ? large_cases() : medium_cases()) {
      const SymmetricNumbers numbers(c, static_cast<uint64_t>(c.n));
      for (const DType dtype : {DType::kBF16, DType::kF16}) {
        c.dtype = dtype;
        Machine memory(make_device(true));
        const SymmetricTrial trial(memory, c, numbers);
        for (const SymmetricKind& kind : symmetric_kinds())
          for (const std::optional<bool>& pairs : {std::optional<bool>(), {true}}) {
            INFO(c.name() << ", " << name_of(dtype) << ", " << kind.name() << ", pairs "
                          << pairs.has_value());
            Machine machine(
                make_device(kind.provider, kind.reserved_sms, {.tiles = tiles, .pairs = pairs}));
            CHECK(wrong(machine, c, trial) == 0);
          }
      }
    }
  }
}

TEST_CASE("symmetric product: a depth cut into slices gives the sum", "[cuda]") {
  for (const SymmetricKind& kind : symmetric_kinds()) {
    for (const SymmetricCase& c :
         {SymmetricCase{100, 1030, 2}, SymmetricCase{130, 1541, 1, true, 1.0f, -3.0f, 9.0f},
          SymmetricCase{370, 1100, 2, true, 1.0f, 2.0f}}) {
      INFO(c.name() << ", " << kind.name());
      CHECK(wrong(kind, c) == 0);
    }
  }
}

TEST_CASE("symmetric product: infinities and NaN reach the result", "[cuda]") {
  for (const SymmetricKind& kind : symmetric_kinds()) {
    Machine machine(kind.device());
    const int64_t n = 390, k = 20, ld = machine.ops().leading_dimension(k, DType::kBF16);
    const int64_t c_ld = machine.ops().leading_dimension(n, DType::kBF16);
    Bytes in = values(9, DType::kBF16, n * ld);
    set_value(in, DType::kBF16, 3 * ld + 4, std::nanf(""));
    Product p;
    p.a = {machine.put(in), DType::kBF16, n, k, ld, 1, n * ld};
    p.b = p.a;
    p.c = {machine.put(Bytes(static_cast<size_t>(2 * n * c_ld))),
           DType::kBF16,
           n,
           n,
           c_ld,
           1,
           n * c_ld};
    p.transpose_b = p.symmetric = true;
    machine.ops().multiply(machine.on(), p);
    machine.finish();
    const Bytes got = machine.get(static_cast<const unsigned char*>(p.c.data), 2 * n * c_ld);
    int64_t unlike = 0;
    for (int64_t r = 0; r < n; ++r)
      for (int64_t j = 0; j < n; ++j)
        unlike += std::isnan(value_in(got, DType::kBF16, r * c_ld + j)) != (r == 3 || j == 3);
    CHECK(unlike == 0);
  }
}
