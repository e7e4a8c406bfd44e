// Tests muonrt_symmetric_product() against float64 and Ops::multiply(), and with invalid arguments.

#include <cmath>
#include <limits>

#include "c_tensor.hpp"
#include "support/backends.hpp"
#include "support/tolerances.hpp"

using namespace c_tensor;

TEST_CASE("symmetric product: equals float64, is exactly symmetric, and keeps other memory",
          "[unit][abi]") {
  Orthogonalizer with;
  for (const auto& [m, k] :
       {std::pair<int64_t, int64_t>{1, 1}, {6, 20}, {20, 6}, {17, 17}, {3, 0}}) {
    for (const DType dtype : kAll) {
      for (const bool by_columns : {false, true}) {
        INFO(m << " x " << k << ", " << name_of(dtype) << ", by columns: " << by_columns);
        const auto strides = [&](int64_t rows, int64_t cols) {
          return by_columns
                     ? std::vector<int64_t>{(rows + 3) * std::max<int64_t>(cols, 1), 1, rows + 3}
                     : std::vector<int64_t>{rows * (cols + 2), cols + 2, 1};
        };
        Tensor a(dtype, {2, m, k}, strides(m, k)), d(dtype, {2, m, m}, strides(m, m));
        Tensor c(dtype, {2, m, m});
        for (int64_t i = 0; i < 2; ++i) {
          a.put(reference::gaussian(m, k, 7 + i), i);
          const Matrix half = reference::gaussian(m, m, 9 + i);
          d.put(reference::add(0.5, half, 0.5, reference::transpose(half)), i);
        }
        const auto compare = [&](const Tensor& result, double alpha, const Matrix& left,
                                 double beta, const Matrix& added, int64_t i) {
          const Matrix got = result.get(i);
          const Matrix square = reference::multiply(left, reference::transpose(left));
          const Matrix expected = reference::add(alpha, square, beta, added);
          for (int64_t row = 0; row < m; ++row)
            for (int64_t col = 0; col < m; ++col) {
              double size = std::abs(beta * added(row, col));
              for (int64_t t = 0; t < left.cols; ++t)
                size += std::abs(alpha * left(row, t) * left(col, t));
              CHECK(std::abs(got(row, col) - expected(row, col)) <=
                    tolerance::product(left.cols, size, expected(row, col), dtype) + 1e-7);
            }
          CHECK(same(got, reference::transpose(got)));
        };
        REQUIRE(with.product(c.view(), 1.0, a.view()) == MUONRT_OK);
        for (int64_t i = 0; i < 2; ++i) compare(c, 1.0, a.get(i), 0.0, d.get(i), i);
        REQUIRE(with.product(c.view(), -2.5, a.view(), 0.75, &d.view()) == MUONRT_OK);
        for (int64_t i = 0; i < 2; ++i) compare(c, -2.5, a.get(i), 0.75, d.get(i), i);
        // The output may be D, even if D is also the operand A, as in b D + c D^2.
        Tensor into = d;
        REQUIRE(with.product(into.view(), -2.5, a.view(), 0.75, &into.view()) == MUONRT_OK);
        for (int64_t i = 0; i < 2; ++i) CHECK(same(into.get(i), c.get(i)));
        into = d;
        REQUIRE(with.product(into.view(), 2.0, into.view(), -4.75, &into.view()) == MUONRT_OK);
        for (int64_t i = 0; i < 2; ++i) {
          compare(into, 2.0, d.get(i), -4.75, d.get(i), i);
          d.put(into.get(i), i);
        }
        CHECK(d.memory == into.memory);
      }
    }
  }
}

TEST_CASE("symmetric product: has the bits of the step's product", "[unit][abi]") {
  Orthogonalizer with;
  backends::Backend host = backends::host(2);
  for (const DType dtype : kAll) {
    constexpr int64_t kRows = 70, kCols = 90, kLd = 96;
    const Matrix x = reference::scale(0.1, reference::gaussian(kRows, kCols, 2));
    auto a = host.memory(kRows * kLd * 4), c = host.memory(kRows * kLd * 4);
    for (int64_t e = 0; e < kRows * kCols; ++e)
      store(a.get(), dtype, e / kCols * kLd + e % kCols,
            static_cast<float>(x(e / kCols, e % kCols)));
    muonrt::Product p;
    p.a = p.b = {a.get(), dtype, kRows, kCols, kLd, 1, 0};
    p.c = {c.get(), dtype, kRows, kRows, kLd, 1, 0};
    p.transpose_b = p.symmetric = true;
    host.ops->reserve(kRows, kRows, kCols, dtype);
    host.ops->multiply(*host.stream, p);
    host.wait();
    Tensor in = tensor_of(x, dtype), out(dtype, {kRows, kRows});
    REQUIRE(with.product(out.view(), 1.0, in.view()) == MUONRT_OK);
    for (int64_t i = 0; i < kRows; ++i)
      CHECK(std::memcmp(static_cast<char*>(c.get()) + i * kLd * size_of(dtype),
                        out.memory.data() + i * kRows * size_of(dtype),
                        static_cast<size_t>(kRows * size_of(dtype))) == 0);
  }
}

TEST_CASE("symmetric product: invalid arguments are rejected with their values", "[unit][abi]") {
  Orthogonalizer with;
  Tensor a(DType::kF32, {4, 6}), c(DType::kF32, {4, 4}), bf16(DType::kBF16, {4, 4});
  const double infinity = std::numeric_limits<double>::infinity();
  const auto call = [&](Tensor& to, double alpha, double beta, Tensor* d) {
    return muonrt_symmetric_product(&to.view(), with.handle, alpha, &a.view(), beta,
                                    d ? &d->view() : nullptr, nullptr);
  };
  CHECK(call(a, 1, 0, nullptr) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(call(bf16, 1, 0, nullptr) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(call(c, 1, 1, &bf16) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(call(c, infinity, 0, nullptr) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(call(c, 1, 1e39, &c) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(call(c, 1, 0.5, nullptr) == MUONRT_ERROR_INVALID_ARGUMENT);
  CHECK(std::string(muonrt_get_last_error()) ==
        "muonrt_symmetric_product: d is NULL; pass a tensor");
}
