#include <catch2/catch.hpp>
#include <limits>

#include "host_fixture.hpp"

using namespace muonrt;
using host_test::dtype_of;
using host_test::f32;
using host_test::OnHost;
using host_test::ulp;
using host_test::values;

namespace {

/// `count` matrices of rows x cols with the leading dimension the ops ask for; the rest is poison.
template <class T>
struct Batch {
  Batch(Ops& ops, int64_t rows, int64_t cols, int64_t count, uint64_t seed)
      : ld(ops.leading_dimension(cols, dtype_of<T>())), stride(rows * ld + 16) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    memory.assign(static_cast<size_t>(stride * count), from_f32<T>(nan));
    view = {memory.data(), dtype_of<T>(), rows, cols, ld, count, stride};
    const auto dense = values<T>(seed, rows * cols * count);
    for (int64_t i = 0; i < count; ++i)
      for (int64_t r = 0; r < rows; ++r)
        std::copy_n(dense.begin() + (i * rows + r) * cols, cols,
                    memory.begin() + i * stride + r * ld);
  }
  double at(int64_t i, int64_t r, int64_t c) const {
    return f32(memory[static_cast<size_t>(i * stride + r * ld + c)]);
  }
  int64_t ld, stride;
  std::vector<T> memory;
  MatrixBatch view;
};

struct Shape {
  int64_t m, n, k, count;
};

}  // namespace

TEMPLATE_TEST_CASE("host multiply: every matrix of a batch is the textbook's product",
                   "[unit][host][tsan]", float, bf16) {
  using T = TestType;
  for (const int threads : {1, 3}) {
    OnHost host(threads);
    for (const auto& [m, n, k, count] :
         {Shape{1, 1, 1, 1}, Shape{7, 5, 3, 4}, Shape{33, 65, 17, 7}, Shape{1, 40, 9, 2}}) {
      for (const bool transpose : {false, true}) {
        Batch<T> a(host.ops(), m, k, count, 1);
        Batch<T> b(host.ops(), transpose ? n : k, transpose ? k : n, count, 2);
        Batch<T> d(host.ops(), m, n, count, 3), c(host.ops(), m, n, count, 4);
        host.ops().reserve(m, n, k, dtype_of<T>());
        Product product{.a = a.view, .b = b.view, .c = c.view, .d = d.view};
        product.transpose_b = transpose;
        product.alpha = 0.5f;
        product.beta = -2.0f;
        product.gamma = 3.0f;
        host.ops().multiply(*host.stream, product);
        host.finish();
        for (int64_t i = 0; i < count; ++i)
          for (int64_t row = 0; row < m; ++row)
            for (int64_t col = 0; col < n; ++col) {
              double sum = 0.0, size = 0.0;
              for (int64_t l = 0; l < k; ++l) {
                const double term =
                    a.at(i, row, l) * (transpose ? b.at(i, col, l) : b.at(i, l, col));
                sum += term;
                size += std::abs(term);
              }
              const double expected =
                  0.5 * sum - 2.0 * d.at(i, row, col) + (row == col ? 3.0 : 0.0);
              // k products and sums in f32, then three terms, then one rounding to T.
              const double bound = (static_cast<double>(k) + 1) * 0x1p-24 * size + 8 * 0x1p-23 +
                                   0.5 * ulp<T>(expected);
              REQUIRE(std::abs(c.at(i, row, col) - expected) <= bound);
            }
      }
    }
  }
}

TEST_CASE("host multiply: a matrix has the same bits alone, in a batch, and with more threads",
          "[unit][host][tsan]") {
  const int64_t m = 48, k = 80, count = 9;
  std::vector<float> expected;
  for (const int threads : {1, 2, 4}) {
    OnHost host(threads);
    host.ops().reserve(m, m, k, DType::kF32);
    Batch<float> x(host.ops(), m, k, count, 5), gram(host.ops(), m, m, count, 6);
    Product product{.a = x.view, .b = x.view, .c = gram.view, .d = {}};
    product.transpose_b = product.symmetric = true;
    product.alpha = 1.0f;
    host.ops().multiply(*host.stream, product);
    host.finish();
    std::vector<float> dense;
    for (int64_t i = 0; i < count; ++i)
      for (int64_t r = 0; r < m; ++r)
        for (int64_t c = 0; c < m; ++c) {
          REQUIRE(gram.at(i, r, c) == gram.at(i, c, r));
          dense.push_back(static_cast<float>(gram.at(i, r, c)));
        }
    if (threads == 1) expected = dense;
    REQUIRE(host_test::same_bits(dense, expected));
    // One by one.
    Batch<float> alone(host.ops(), m, m, count, 7);
    for (int64_t i = 0; i < count; ++i) {
      Product one = product;
      one.c = alone.view;
      for (MatrixBatch* each : {&one.a, &one.b, &one.c}) {
        each->data = static_cast<float*>(each->data) + i * each->stride;
        each->count = 1;
      }
      host.ops().multiply(*host.stream, one);
      host.finish();
    }
    for (int64_t i = 0; i < count; ++i)
      for (int64_t r = 0; r < m; ++r)
        for (int64_t c = 0; c < m; ++c) REQUIRE(alone.at(i, r, c) == gram.at(i, r, c));
  }
}

TEST_CASE("host multiply: after reserve a product takes no memory of the device", "[unit][host]") {
  for (const int threads : {1, 2}) {
    OnHost host(threads);
    for (int64_t n : {10, 200, 40}) {
      host.ops().reserve(n, n, n, DType::kF32);
      host.ops().reserve(n, n, n, DType::kBF16);
    }
    const int64_t calls = host.device->allocations();
    REQUIRE(calls > 0);
    for (int64_t n : {10, 200, 40}) {
      host.ops().reserve(n, n, n, DType::kF32);  // has it already
      Batch<float> a(host.ops(), n, n, 3, 1), b(host.ops(), n, n, 3, 2), c(host.ops(), n, n, 3, 3);
      for (const MatrixBatch& right : {a.view, b.view})
        for (const bool transpose : {false, true}) {
          Product product{.a = a.view, .b = right, .c = c.view, .d = a.view};
          product.transpose_b = transpose;
          product.alpha = product.beta = 1.0f;
          host.ops().multiply(*host.stream, product);
          host.finish();
        }
    }
    REQUIRE(host.device->allocations() == calls);
  }
}

TEST_CASE("host multiply: batches that disagree and empty ones", "[unit][host]") {
  OnHost host;
  Batch<float> a(host.ops(), 4, 4, 2, 1), c(host.ops(), 4, 4, 3, 2);
  Product product{.a = a.view, .b = a.view, .c = c.view, .d = {}};
  product.alpha = 1.0f;
  REQUIRE_THROWS_AS(host.ops().multiply(*host.stream, product), Error);
  product.a.count = product.b.count = product.c.count = 0;
  host.ops().multiply(*host.stream, product);
  host.finish();
}

TEST_CASE("host multiply: with an alpha of zero the factors are not read", "[unit][host]") {
  OnHost host(1);
  Batch<float> a(host.ops(), 5, 7, 2, 1), d(host.ops(), 5, 5, 2, 2), c(host.ops(), 5, 5, 2, 3);
  a.memory.assign(a.memory.size(), std::numeric_limits<float>::quiet_NaN());
  for (const bool transpose : {false, true}) {
    Product product{.a = a.view, .b = a.view, .c = c.view, .d = d.view};
    if (!transpose) std::swap(product.b.rows, product.b.cols);
    product.transpose_b = transpose;
    product.alpha = 0.0f;
    product.beta = -2.0f;
    product.gamma = 3.0f;
    host.ops().reserve(5, 5, 7, DType::kF32);
    host.ops().multiply(*host.stream, product);
    host.finish();
    for (int64_t i = 0; i < 2; ++i)
      for (int64_t r = 0; r < 5; ++r)
        for (int64_t col = 0; col < 5; ++col)
          CHECK(c.at(i, r, col) ==
                static_cast<double>(static_cast<float>(-2 * d.at(i, r, col) + (r == col ? 3 : 0))));
  }
}
