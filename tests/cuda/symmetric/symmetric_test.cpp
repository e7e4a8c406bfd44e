// Tests muonrt's own symmetric products with the op `multiply`.

#include <catch2/catch.hpp>
#include <cmath>

#include "cuda/symmetric/symmetric_cases.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

/// Makes the machine compute the product, and returns the number of wrong elements.
int64_t wrong(Machine& machine, const SymmetricCase& c, const SymmetricTrial& trial) {
  trial.wipe(machine);
  machine.ops().reserve(c.n, c.n, c.k, c.dtype);
  machine.ops().multiply(machine.on(), trial.product);
  machine.finish();
  return trial.wrong(machine);
}

/// Requires that each kind computes every case without errors.
void require_exact(const std::vector<SymmetricCase>& cases) {
  const std::vector<SymmetricKind> kinds = symmetric_kinds();
  std::vector<std::unique_ptr<Machine>> machines;
  int64_t last = 0;
  for (const SymmetricCase& c : cases) {
    if (kinds.empty()) return;
    // All cases with the same n use the same machines.
    if (std::exchange(last, c.n) != c.n) {
      machines.clear();
      for (const SymmetricKind& kind : kinds)
        machines.push_back(std::make_unique<Machine>(kind.device()));
    }
    const SymmetricNumbers numbers(c, static_cast<uint64_t>(c.n * 4 + c.count));
    const SymmetricTrial trial(*machines[0], c, numbers);
    for (size_t i = 0; i < kinds.size(); ++i) {
      INFO(c.name() << ", " << kinds[i].name());
      REQUIRE(wrong(*machines[i], c, trial) == 0);
    }
  }
}

}  // namespace

TEST_CASE("symmetric product: exact on integers, with every epilogue and unchanged gaps",
          "[cuda]") {
  std::vector<SymmetricCase> cases;
  for (int64_t turn = 0; turn < kEpilogues; ++turn) {
    cases.push_back(case_of(65, 72, 3, turn));
    cases.push_back(case_of(257, 33, 1, turn + kEpilogues));
  }
  cases.push_back(case_of(385, 40, 1, 2));
  require_exact(cases);
}

TEST_CASE("symmetric product: exact on integers at the edges of tiles, stages and the ring",
          "[cuda][every]") {
  require_exact(edge_cases());
}

TEST_CASE("symmetric product: exact on integers for every n to 600, batches 1 to 4",
          "[cuda][.full]") {
  require_exact(all_cases());
}

TEST_CASE("symmetric product: a depth that is cut into slices has the same sum", "[cuda]") {
  require_exact(
      {{100, 1030, 2}, {130, 1541, 1, true, 1.0f, -3.0f, 9.0f}, {370, 1100, 2, true, 1.0f, 2.0f}});
}

// The emulated program runs the large tiles on small grids (symmetric_tiles_test).
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

TEST_CASE("symmetric product: infinities and NaN appear in the result", "[cuda]") {
  for (const SymmetricKind& kind : symmetric_kinds()) {
    Machine machine(kind.device());
    const int64_t n = 390, k = 20, ld = machine.ops().leading_dimension(k, DType::kBF16);
    const int64_t c_ld = machine.ops().leading_dimension(n, DType::kBF16);
    Bytes in = values(9, DType::kBF16, n * ld);
    set_value(in, DType::kBF16, 3 * ld + 4, std::nanf(""));
    Product p;
    p.a = {machine.put(in), DType::kBF16, n, k, ld, 1, n * ld};
    p.b = p.a;
    void* const out = machine.put(Bytes(static_cast<size_t>(2 * n * c_ld)));
    p.c = {out, DType::kBF16, n, n, c_ld, 1, n * c_ld};
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
