// muonrt's own symmetric products, through the op.

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <utility>

#include "cuda/symmetric_draws.hpp"
#include "support/tolerances.hpp"

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
// symmetric_medium_test).
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

TEST_CASE("symmetric product: real numbers within the roundings of their sums", "[cuda]") {
  for (const SymmetricKind& kind : symmetric_kinds()) {
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>(70, 200), {140, 90}, {390, 150}}) {
      Machine machine(kind.device());
      const int64_t ld = machine.ops().leading_dimension(k, DType::kBF16);
      const int64_t c_ld = machine.ops().leading_dimension(n, DType::kBF16);
      // Another B than A: even then the lower half is the upper one's mirror.
      const Bytes in = values(5, DType::kBF16, n * ld), in_b = values(6, DType::kBF16, n * ld);
      Product p;
      p.a = {machine.put(in), DType::kBF16, n, k, ld, 1, n * ld};
      p.b = p.a;
      p.b.data = machine.put(in_b);
      const Bytes nothing(static_cast<size_t>(2 * n * c_ld));
      p.c = {machine.put(nothing), DType::kBF16, n, n, c_ld, 1, n * c_ld};
      p.transpose_b = p.symmetric = true;
      p.alpha = 0.37f;
      p.gamma = 0.11f;
      machine.ops().reserve(n, n, k, DType::kBF16);
      machine.ops().multiply(machine.on(), p);
      machine.finish();
      const Bytes got = machine.get(static_cast<const unsigned char*>(p.c.data), 2 * n * c_ld);
      int64_t off = 0, unlike = 0;
      for (int64_t r = 0; r < n; ++r) {
        for (int64_t j = r; j < n; ++j) {
          double sum = 0, magnitude = 0;
          for (int64_t i = 0; i < k; ++i) {
            const double term = static_cast<double>(value_in(in, DType::kBF16, r * ld + i)) *
                                static_cast<double>(value_in(in_b, DType::kBF16, j * ld + i));
            sum += term;
            magnitude += std::abs(term);
          }
          const double diagonal = r == j ? static_cast<double>(p.gamma) : 0.0;
          const double expected = static_cast<double>(p.alpha) * sum + diagonal;
          const auto value = static_cast<double>(value_in(got, DType::kBF16, r * c_ld + j));
          off += !(std::abs(value - expected) <=
                   tolerance::tensor_product(k, magnitude + diagonal, expected, DType::kBF16));
          unlike += value_in(got, DType::kBF16, r * c_ld + j) !=
                    value_in(got, DType::kBF16, j * c_ld + r);
        }
      }
      CHECK(off == 0);
      CHECK(unlike == 0);
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

// On random values: the tile that computes an element depends on the batch and on the grid, and all
// tiles must add it up alike.
TEST_CASE("symmetric product: a matrix has the same bits alone and in a batch", "[cuda]") {
  using Sizes = std::vector<std::pair<int64_t, int64_t>>;
  const Sizes sizes = is_emulated() ? Sizes{{130, 90}, {70, 1030}}
                                    : Sizes{{128, 4096},  {384, 2048},  {512, 512},  {768, 2048},
                                            {1024, 1024}, {1152, 4096}, {2048, 2048}};
  for (const SymmetricKind& kind : symmetric_kinds()) {
    for (const auto& [n, k] : sizes) {
      CAPTURE(kind.name(), n, k);
      // As many as the host makes and compares within seconds.
      const int64_t count = is_emulated() ? 5 : std::clamp<int64_t>((1 << 24) / (n * k), 4, 64);
      Machine machine(kind.device());
      const int64_t ld = machine.ops().leading_dimension(k, DType::kBF16);
      const int64_t c_ld = machine.ops().leading_dimension(n, DType::kBF16);
      const Bytes one = values(11, DType::kBF16, n * ld);
      Bytes all;
      for (int64_t i = 0; i < count; ++i) all.insert(all.end(), one.begin(), one.end());
      Product p;
      p.transpose_b = p.symmetric = true;
      p.alpha = 0.37f;
      p.a = {machine.put(all), DType::kBF16, n, k, ld, count, n * ld};
      p.b = p.a;
      p.c = {machine.put(Bytes(static_cast<size_t>(2 * count * n * c_ld))),
             DType::kBF16,
             n,
             n,
             c_ld,
             count,
             n * c_ld};
      const auto result = [&](int64_t matrices) {
        for (MatrixBatch* m : {&p.a, &p.b, &p.c}) m->count = matrices;
        machine.ops().fill(machine.on(), p.c.data, 0x5a, 2 * count * n * c_ld);
        machine.ops().multiply(machine.on(), p);
        machine.finish();
        return machine.get(static_cast<const unsigned char*>(p.c.data), 2 * matrices * n * c_ld);
      };
      const Bytes batch = result(count), alone = result(1);
      for (int64_t i = 0; i < count; ++i)
        REQUIRE(std::equal(alone.begin(), alone.end(),
                           batch.begin() + static_cast<std::ptrdiff_t>(i) * std::ssize(alone)));
    }
  }
}
