#include <catch2/catch.hpp>
#include <cmath>

#include "cuda/machine.hpp"
#include "support/tolerances.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

struct Case {
  int64_t m, n, k, count = 1;
  bool transpose_b = false, symmetric = false, with_d = false;
  float alpha = 1.0f, beta = 0.0f, gamma = 0.0f;
};

/// Operands on a machine, their rows as wide as the backend wants them.
struct Operands {
  Operands(Machine& machine, const Case& c, DType dtype, DType result, bool share = false) {
    // D's rows and matrices lie further apart than C's.
    const auto make = [&](int64_t rows, int64_t cols, DType type, uint64_t seed, Bytes& content,
                          int64_t apart = 0) {
      MatrixBatch made{
          nullptr, type, rows, cols, machine.ops().leading_dimension(cols, type) + apart,
          c.count, 0};
      made.stride = (rows * made.ld + 127 + apart) / 128 * 128;
      content = values(seed, type, c.count * made.stride);
      made.data = machine.put(content);
      return made;
    };
    p.a = make(c.m, c.k, dtype, 1, in_a);
    // A product with a symmetric result: A A^T, or a polynomial of one symmetric matrix.
    p.b = share ? p.a : make(c.transpose_b ? c.n : c.k, c.transpose_b ? c.k : c.n, dtype, 2, in_b);
    if (share) in_b = in_a;
    p.c = make(c.m, c.n, result, 3, in_c);
    if (c.with_d) p.d = make(c.m, c.n, dtype, 4, in_d, 128);
    if (c.with_d && c.symmetric) symmetrize(machine, c);
    if (c.with_d && c.beta == 0.0f) {  // not looked at: NaN
      std::fill(in_d.begin(), in_d.end(), 0xff);
      p.d.data = machine.put(in_d);
    }
    p.transpose_b = c.transpose_b;
    p.symmetric = c.symmetric;
    p.alpha = c.alpha;
    p.beta = c.beta;
    p.gamma = c.gamma;
  }

  void symmetrize(Machine& machine, const Case& c) {
    for (int64_t i = 0; i < c.count; ++i)
      for (int64_t r = 0; r < c.m; ++r)
        for (int64_t j = 0; j < r; ++j)
          set_value(in_d, p.d.dtype, i * p.d.stride + r * p.d.ld + j,
                    value_in(in_d, p.d.dtype, i * p.d.stride + j * p.d.ld + r));
    p.d.data = machine.put(in_d);
  }

  static double at(const Bytes& bytes, const MatrixBatch& m, int64_t matrix, int64_t row,
                   int64_t col) {
    return static_cast<double>(value_in(bytes, m.dtype, matrix * m.stride + row * m.ld + col));
  }

  Product p;
  Bytes in_a, in_b, in_c, in_d;  // what they held
};

Bytes product_of(Machine& machine, const Operands& o) {
  machine.ops().reserve(o.p.c.rows, o.p.c.cols, o.p.a.cols, o.p.a.dtype);
  machine.ops().multiply(machine.on(), o.p);
  machine.finish();
  return machine.get(static_cast<const unsigned char*>(o.p.c.data), std::ssize(o.in_c));
}

/// Elements that are off by more than one rounding and the sums' own, and whether the padding is
/// as it was.
int64_t wrong_elements(const Case& c, const Operands& o, const Bytes& got) {
  int64_t wrong = 0;
  for (int64_t i = 0; i < c.count; ++i) {
    for (int64_t r = 0; r < c.m; ++r) {
      for (int64_t j = 0; j < c.n; ++j) {
        double sum = 0, magnitude = 0;
        for (int64_t k = 0; k < c.k; ++k) {
          const double b = c.transpose_b ? Operands::at(o.in_b, o.p.b, i, j, k)
                                         : Operands::at(o.in_b, o.p.b, i, k, j);
          const double term = Operands::at(o.in_a, o.p.a, i, r, k) * b;
          sum += term;
          magnitude += std::abs(term);
        }
        double expected = static_cast<double>(c.alpha) * sum;
        magnitude *= std::abs(static_cast<double>(c.alpha));
        if (c.with_d && c.beta != 0.0f) {
          const double d = static_cast<double>(c.beta) * Operands::at(o.in_d, o.p.d, i, r, j);
          expected += d;
          magnitude += std::abs(d);
        }
        if (r == j) {
          expected += static_cast<double>(c.gamma);
          magnitude += std::abs(static_cast<double>(c.gamma));
        }
        const double off = std::abs(Operands::at(got, o.p.c, i, r, j) - expected);
        wrong += !(off <= tolerance::product(c.k, magnitude, expected, o.p.c.dtype));
      }
      for (int64_t j = c.n; j < o.p.c.ld; ++j)
        wrong += Operands::at(got, o.p.c, i, r, j) != Operands::at(o.in_c, o.p.c, i, r, j);
    }
  }
  return wrong;
}

std::vector<Case> cases() {
  return {{1, 1, 1},
          {5, 7, 3, 2},
          {64, 130, 33},
          {17, 65, 100, 3, true},
          {33, 70, 33, 1, false, false, true, 1.5f, -0.75f},
          {40, 40, 70, 2, true, true},
          {33, 70, 33, 3, false, false, true, 1.5f, -0.75f},
          {33, 70, 20, 2, false, false, true, 1.5f},
          {33, 70, 20, 2, false, false, false, 1.5f, 2.0f},
          {66, 66, 66, 1, true, true, true, 0.3f, 2.5f},
          {66, 66, 66, 1, true, true, true, 0.3f, 2.5f, 0.7f},
          {70, 70, 70, 2, true, true, true, 0.0f, 1.25f, 3.5f},
          {9, 9, 0, 1, true, true, true, 1.0f, -2.0f, 1.0f},
          {1, 300, 1, 2, false, false, true, 1.0f, 1.0f}};
}

}  // namespace

TEST_CASE("cuda multiply: equals float64 up to the roundings of f32 sums", "[cuda]") {
  for (const bool naive : {true, false}) {
    for (const Case& c : cases()) {
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        for (const DType result : {DType::kF32, DType::kBF16}) {
          INFO((naive ? "naive, " : "vendor, ")
               << c.m << " x " << c.n << " x " << c.k << ", " << name_of(dtype) << " into "
               << name_of(result) << ", gamma " << c.gamma);
          Machine machine(make_device(naive));
          // With A for B and a symmetric D the symmetric ones are symmetric.
          const Operands o(machine, c, dtype, result, c.symmetric);
          const Bytes got = product_of(machine, o);
          CHECK(wrong_elements(c, o, got) == 0);
        }
      }
    }
  }
}

TEST_CASE("cuda multiply: a symmetric result is symmetric to the bit", "[cuda]") {
  for (const bool naive : {true, false}) {
    Machine machine(make_device(naive));
    for (const int64_t n : {1, 63, 64, 65, 130, 200}) {
      const Case c{n, n, 77, 2, true, true};
      const Operands o(machine, c, DType::kBF16, DType::kBF16, true);
      const Bytes got = product_of(machine, o);
      int64_t different = 0;
      for (int64_t i = 0; i < c.count; ++i)
        for (int64_t r = 0; r < n; ++r)
          for (int64_t j = 0; j < r; ++j)
            different += Operands::at(got, o.p.c, i, r, j) != Operands::at(got, o.p.c, i, j, r);
      CHECK(different == 0);
    }
  }
}

TEST_CASE("cuda multiply: a matrix in a batch has the bits it has alone, again and again",
          "[cuda]") {
  for (const bool naive : {true, false}) {
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Machine machine(make_device(naive));
      for (const Case& c : {Case{48, 80, 48, 5}, Case{64, 64, 200, 7, true, true}}) {
        const Operands o(machine, c, dtype, dtype, c.symmetric);
        const Bytes batched = product_of(machine, o);
        CHECK(difference(product_of(machine, o), batched) == -1);
        for (int64_t i = 0; i < c.count; ++i) {
          Operands alone = o;
          for (MatrixBatch* m : {&alone.p.a, &alone.p.b, &alone.p.c}) {
            m->data = static_cast<char*>(m->data) + i * m->stride * size_of(dtype);
            m->count = 1;
          }
          machine.ops().fill(machine.on(), alone.p.c.data, 0xff,
                             ((c.m - 1) * o.p.c.ld + c.n) * size_of(dtype));
          machine.ops().multiply(machine.on(), alone.p);
          machine.finish();
          int64_t different = 0;
          const Bytes got = machine.get(static_cast<const unsigned char*>(alone.p.c.data),
                                        o.p.c.stride * size_of(dtype));
          for (int64_t r = 0; r < c.m; ++r)
            for (int64_t j = 0; j < c.n; ++j)
              different +=
                  Operands::at(got, o.p.c, 0, r, j) != Operands::at(batched, o.p.c, i, r, j);
          CHECK(different == 0);
        }
      }
    }
  }
}

TEST_CASE("cuda multiply: dtypes and shapes that do not fit are refused", "[cuda]") {
  Machine machine(make_device(true));
  Operands o(machine, {4, 4, 4}, DType::kF32, DType::kF32);
  o.p.a.dtype = static_cast<DType>(99);
  CHECK_THROWS_AS(machine.ops().multiply(machine.on(), o.p), Error);
  o.p.a.dtype = DType::kF32;
  o.p.a.cols = 3;
  CHECK_THROWS_AS(machine.ops().multiply(machine.on(), o.p), Error);
}

TEST_CASE("cuda product: a result that is one of its factors is refused", "[cuda]") {
  Machine machine(make_device());
  for (const bool first : {false, true}) {
    Operands o(machine, {32, 32, 32}, DType::kBF16, DType::kBF16);
    o.p.c.data = first ? o.p.a.data : o.p.b.data;
    CHECK_THROWS_WITH(machine.ops().multiply(machine.on(), o.p),
                      Catch::Contains("product into one of its factors"));
  }
}

namespace {

double number_in(const Bytes& bytes, DType dtype, int64_t at) {
  if (dtype != DType::kF16) return static_cast<double>(value_in(bytes, dtype, at));
  f16 half{};
  std::memcpy(&half, bytes.data() + 2 * at, sizeof half);
  return static_cast<double>(to_f32(half));
}

}  // namespace

TEST_CASE("cuda add_identity: the diagonals have the host's bits, all else stays as it was",
          "[cuda]") {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& [n, count] : {std::pair<int64_t, int64_t>{1, 1}, {33, 3}, {300, 2}}) {
      const auto made_on = [&, n = n, count = count](Machine& machine, bool added) {
        MatrixBatch x{nullptr, dtype, n, n, n + 7, count, 0};
        x.stride = n * x.ld + 64;
        const Bytes content = values(7, dtype, count * x.stride);
        x.data = machine.put(content);
        if (added) machine.ops().add_identity(machine.on(), x, 3.4445f);
        machine.finish();
        const Bytes got =
            machine.get(static_cast<const unsigned char*>(x.data), std::ssize(content));
        std::vector<double> diagonal;
        int64_t others = 0;
        for (int64_t at = 0; at < count * x.stride; ++at) {
          const int64_t inside = at % x.stride, row = inside / x.ld;
          if (row < n && inside % x.ld == row) {
            diagonal.push_back(number_in(got, dtype, at));
          } else {
            const int64_t size = size_of(dtype);
            others += !std::equal(got.begin() + at * size, got.begin() + (at + 1) * size,
                                  content.begin() + at * size);
          }
        }
        CHECK(others == 0);
        return diagonal;
      };
      Machine gpu(make_device()), host(make_host());
      const auto ours = made_on(gpu, true), theirs = made_on(host, true);
      const auto before = made_on(host, false);
      CAPTURE(name_of(dtype), n, count);
      REQUIRE(std::ssize(ours) == n * count);
      CHECK(ours == theirs);
      int64_t wrong = 0;
      for (size_t i = 0; i < ours.size(); ++i) {
        const double sum = before[i] + static_cast<double>(3.4445f);
        // Half a unit in the last place of f32, bf16 and f16.
        const double half = dtype == DType::kF32    ? 0x1p-24
                            : dtype == DType::kBF16 ? 0x1p-8
                                                    : 0x1p-11;
        wrong += !(std::abs(ours[i] - sum) <= 1.001 * half * std::abs(sum));
      }
      CHECK(wrong == 0);
    }
  }
}
