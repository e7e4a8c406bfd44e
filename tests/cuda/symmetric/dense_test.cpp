// Tests muonrt's own dense products through the op.

#include <catch2/catch.hpp>
#include <cmath>

#include "cuda/symmetric/dense_cases.hpp"
#include "support/tolerances.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

/// Returns one machine for each way to compute dense products: on all SMs or on two thread blocks,
/// each with and without pairs. Returns no machine if the GPU does not have compute capability 9.0.
std::vector<std::unique_ptr<Machine>> dense_machines() {
  std::vector<std::unique_ptr<Machine>> machines;
  for (const SymmetricKind& kind : symmetric_kinds())
    for (const bool pairs : {true, false}) {
      if (kind.provider != SymmetricProvider::kSm90) continue;
      machines.push_back(std::make_unique<Machine>(
          make_device(kind.provider, kind.reserved_sms, {.pairs = pairs, .dense = true})));
      CHECK(machines.back()->device->describe().find(", dense") != std::string::npos);
    }
  return machines;
}

void require_exact(const std::vector<DenseCase>& cases) {
  const auto machines = dense_machines();
  for (const DenseCase& c : cases) {
    if (machines.empty()) return;
    INFO(c.name());
    const DenseTrial trial(*machines[0], c, static_cast<uint64_t>(c.m * 1000 + c.n));
    for (const auto& machine : machines) {
      trial.wipe(*machine);
      machine->ops().reserve(c.m, c.n, c.k, c.dtype);
      machine->ops().multiply(machine->on(), trial.product);
      machine->finish();
      REQUIRE(trial.wrong(*machine) == 0);
    }
  }
}

/// A batch of real matrices on one machine: C = 0.37 A X + 0.7 X, as in Newton-Schulz.
struct RealBatch {
  RealBatch(Machine& on, int64_t m, int64_t n, int64_t count, DType dtype)
      : machine(on),
        a(values(3, dtype, count * m * ld_of(m))),
        x(values(4, dtype, count * m * ld_of(n))) {
    const auto batch = [&](const Bytes& from, int64_t cols) {
      return MatrixBatch{machine.put(from), dtype, m, cols, ld_of(cols), count, m * ld_of(cols)};
    };
    product.a = batch(a, m);
    product.b = product.d = batch(x, n);
    product.c = batch(Bytes(x.size()), n);
    product.alpha = 0.37f;
    product.beta = 0.7f;
  }
  static int64_t ld_of(int64_t cols) { return (cols + 31) / 32 * 32 + 32; }

  /// Returns matrix `index`. If `single` is set, this matrix is computed by itself.
  Bytes result(int64_t index, bool single) {
    Product p = product;
    for (MatrixBatch* m : {&p.a, &p.b, &p.c, &p.d}) {
      if (!single) break;
      m->data = static_cast<char*>(m->data) + 2 * index * m->stride;
      m->count = 1;
    }
    const int64_t bytes = 2 * product.c.stride;
    machine.ops().fill(machine.on(), product.c.data, 0x5a, product.c.count * bytes);
    machine.ops().multiply(machine.on(), p);
    machine.finish();
    return machine.get(static_cast<const unsigned char*>(product.c.data) + index * bytes, bytes);
  }

  Machine& machine;
  Bytes a, x;
  Product product;
};

/// Returns the number of elements of matrix 0 that differ from float64 by more than their rounding
/// errors.
int64_t far(const RealBatch& batch, const Bytes& got) {
  const Product& p = batch.product;
  const DType dtype = p.c.dtype;
  int64_t out = 0;
  for (int64_t row = 0; row < p.c.rows; ++row)
    for (int64_t col = 0; col < p.c.cols; ++col) {
      double sum = 0, magnitude = 0;
      for (int64_t k = 0; k < p.a.cols; ++k) {
        const double term = double{value_in(batch.a, dtype, row * p.a.ld + k)} *
                            double{value_in(batch.x, dtype, k * p.b.ld + col)};
        sum += term;
        magnitude += std::abs(term);
      }
      const double d = double{p.beta} * double{value_in(batch.x, dtype, row * p.b.ld + col)};
      const double expected = double{p.alpha} * sum + d;
      magnitude = double{p.alpha} * magnitude + std::abs(d);
      const double allowed = tolerance::tensor_product(p.a.cols, magnitude, expected, dtype);
      out += !(std::abs(double{value_in(got, dtype, row * p.c.ld + col)} - expected) <= allowed);
    }
  return out;
}

}  // namespace

TEST_CASE("dense product: exact on integers, with every epilogue and unchanged gaps", "[cuda]") {
  std::vector<DenseCase> cases;
  for (int64_t turn = 0; turn < 6; ++turn) {
    cases.push_back(dense_case(65, 100, 72, 3, turn));
    cases.push_back(dense_case(257, 300, 33, 1, turn));
  }
  require_exact(cases);
}

TEST_CASE("dense product: exact on integers at the edges of tiles, stages and the ring",
          "[cuda][every]") {
  require_exact(dense_edge_cases());
}

TEST_CASE("dense product: exact on integers in the grids of a GPU", "[cuda]") {
  if (is_emulated()) return;  // dense_tiles_test runs grids of several sizes
  require_exact({{2048, 7168, 200, 2, -2.0f, 1.0f},
                 {768, 2048, 330, 16, 1.0f, 3.0f, DType::kF16},
                 {1153, 4100, 72, 1, 1.0f, 1.0f},
                 {385, 16384, 130, 3}});
}

TEST_CASE("dense product: differs from float64 by its rounding errors, with equal bits everywhere",
          "[cuda]") {
  for (const DType dtype : {DType::kBF16, DType::kF16})
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>(130, 520), {257, 300}}) {
      std::vector<Bytes> results;
      for (const auto& machine : dense_machines()) {
        RealBatch batch(*machine, m, n, 3, dtype);
        CHECK(far(batch, batch.result(0, true)) == 0);
        for (const bool single : {false, true}) results.push_back(batch.result(2, single));
      }
      CAPTURE(m, n);
      for (const Bytes& result : results) CHECK(difference(result, results[0]) == -1);
    }
}

TEST_CASE("dense product: a NaN appears in its row or column, and nowhere else", "[cuda]") {
  for (const auto& machine : dense_machines())
    for (const bool in_a : {true, false}) {
      RealBatch batch(*machine, 140, 300, 1, DType::kBF16);
      Bytes& planted = in_a ? batch.a : batch.x;
      set_value(planted, DType::kBF16, 3 * RealBatch::ld_of(in_a ? 140 : 300) + 4, std::nanf(""));
      (in_a ? batch.product.a : batch.product.b).data = machine->put(planted);
      const Bytes got = batch.result(0, true);
      int64_t unlike = 0;
      for (int64_t row = 0; row < 140; ++row)
        for (int64_t col = 0; col < 300; ++col)
          unlike += std::isnan(value_in(got, DType::kBF16, row * batch.product.c.ld + col)) !=
                    (in_a ? row == 3 : col == 4);
      CHECK(unlike == 0);
    }
}
