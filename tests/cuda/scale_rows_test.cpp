#include <catch2/catch.hpp>
#include <cstring>
#include <new>

#include "cuda/machine.hpp"
#include "support/backends.hpp"
#include "support/reference_ops.hpp"
#include "textbook/textbook.hpp"

// Row factors and the normalization with eps or into f16: byte by byte what the host computes.

using namespace muonrt;

namespace {

struct Results {
  std::vector<unsigned char> gram, x, factors, normalized;
};

/// Three matrices m x n with rows of many sizes, one of them zero; their products are the host's.
Results run(backends::Backend& backend, DType dtype, int64_t m, int64_t n,
            const Normalization& how) {
  constexpr int64_t kCount = 3;
  const MatrixBatch gram{nullptr, dtype, m, m, m + 5, kCount, m * (m + 5) + 3};
  const MatrixBatch x{nullptr, dtype, m, n, n + 1, kCount, m * (n + 1)};
  const MatrixBatch factors{nullptr, DType::kF32, 1, m, m, kCount, m + 2};
  const MatrixBatch raw{nullptr, DType::kF32, m, n, n, kCount, m * n};
  const auto memory = [&](MatrixBatch& batch) {
    const int64_t bytes = kCount * batch.stride * size_of(batch.dtype);
    auto out = backend.memory(bytes);
    std::memset(out.get(), 0xff, static_cast<size_t>(bytes));
    batch.data = out.get();
    return out;
  };
  MatrixBatch g = gram, in = x, s = factors, r = raw, to = x;
  const auto keep = {memory(g), memory(in), memory(s), memory(r), memory(to)};
  for (int64_t k = 0; k < kCount; ++k) {
    textbook::Matrix a = textbook::gaussian(m, n, static_cast<uint64_t>(60 + k));
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) a(i, j) *= i == 2 ? 0.0 : 1.0 / static_cast<double>(1 + i);
    const textbook::Matrix product = textbook::multiply(a, textbook::transpose(a));
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        reference::store(in.data, dtype, k * x.stride + i * x.ld + j, static_cast<float>(a(i, j)));
        reference::store(r.data, DType::kF32, k * raw.stride + i * raw.ld + j,
                         static_cast<float>(a(i, j)));
      }
      for (int64_t j = 0; j < m; ++j)
        reference::store(g.data, dtype, k * gram.stride + i * gram.ld + j,
                         static_cast<float>(product(i, j)));
    }
  }
  const auto findings = backend.memory(sizeof(Findings));
  new (findings.get()) Findings();
  backend.ops->normalize(*backend.stream, r, to, how, static_cast<Findings*>(findings.get()));
  backend.ops->scale_rows(*backend.stream, g, in, s, {1.02f});
  backend.wait();
  const auto bytes = [](const MatrixBatch& b) {
    const auto* first = static_cast<const unsigned char*>(b.data);
    return std::vector<unsigned char>(first, first + b.count * b.stride * size_of(b.dtype));
  };
  return {bytes(g), bytes(in), bytes(s), bytes(to)};
}

}  // namespace

TEST_CASE("cuda scale rows: factors, rows, Gram matrix and f16 results have the host's bits",
          "[cuda]") {
  auto host = backends::host(1);
  auto cuda = backends::cuda(/*naive_products=*/true);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& [m, n] : {std::pair<int64_t, int64_t>{1, 9}, {7, 40}, {33, 64}, {70, 71}}) {
      for (const Normalization how :
           {Normalization{1.02f}, {1.0f, 0.25f, 0.0f}, {1.0f, 0.0f, 100.0f}}) {
        INFO(name_of(dtype) << ", " << m << " x " << n << ", added " << how.added);
        const Results expected = run(host, dtype, m, n, how), got = run(cuda, dtype, m, n, how);
        CHECK(got.factors == expected.factors);
        CHECK(got.x == expected.x);
        CHECK(got.gram == expected.gram);
        CHECK(got.normalized == expected.normalized);
      }
    }
  }
}
