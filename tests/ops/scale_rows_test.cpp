#include <catch2/catch.hpp>
#include <cmath>
#include <vector>

#include "support/backends.hpp"
#include "support/numerics/reference_ops.hpp"
#include "support/tolerances.hpp"
#include "textbook/textbook.hpp"

using namespace muonrt;
using textbook::Matrix;

namespace {

/// A batch in memory of the backend; padding between rows and matrices is NaN.
struct Stored {
  Stored(backends::Backend& backend, DType dtype, int64_t rows, int64_t cols, int64_t count) {
    batch = {nullptr, dtype, rows, cols, cols + 3, count, rows * (cols + 3) + 5};
    memory = backend.memory(count * batch.stride * size_of(dtype));
    batch.data = memory.get();
    for (int64_t i = 0; i < count * batch.stride; ++i)
      reference::store(batch.data, dtype, i, std::nanf(""));
  }
  void set(int64_t k, const Matrix& from) {
    for (int64_t i = 0; i < from.rows; ++i)
      for (int64_t j = 0; j < from.cols; ++j)
        reference::store(batch.data, batch.dtype, at(k, i, j), static_cast<float>(from(i, j)));
  }
  double get(int64_t k, int64_t i, int64_t j) const {
    return static_cast<double>(reference::load(batch.data, batch.dtype, at(k, i, j)));
  }
  std::vector<unsigned char> bytes() const {
    const auto* first = static_cast<const unsigned char*>(batch.data);
    return {first, first + batch.count * batch.stride * size_of(batch.dtype)};
  }
  int64_t at(int64_t k, int64_t i, int64_t j) const { return k * batch.stride + i * batch.ld + j; }
  MatrixBatch batch;
  std::shared_ptr<void> memory;
};

}  // namespace

TEST_CASE("scale rows: every row gets its factor, the Gram matrix both, symmetric to the bit",
          "[ops]") {
  constexpr int64_t kCount = 2;
  constexpr float kSafety = 1.02f;
  auto all = backends::all();
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& [m, n] :
         {std::pair<int64_t, int64_t>{1, 9}, {7, 40}, {33, 64}, {65, 65}, {70, 71}, {130, 9}}) {
      std::vector<std::vector<unsigned char>> bits;  // those of the host with one thread
      for (auto& backend : all) {
        INFO(backend.name << ", " << name_of(dtype) << ", " << m << " x " << n);
        Stored gram(backend, dtype, m, m, kCount), x(backend, dtype, m, n, kCount);
        Stored factors(backend, DType::kF32, 1, m, kCount);
        std::vector<Matrix> grams, xs;
        for (int64_t k = 0; k < kCount; ++k) {
          Matrix in = textbook::gaussian(m, n, static_cast<uint64_t>(90 + k));
          if (m > 3)
            for (int64_t j = 0; j < n; ++j) in(3, j) = 0;
          xs.push_back(textbook::rounded(in, dtype));
          grams.push_back(
              textbook::rounded(textbook::multiply(in, textbook::transpose(in)), dtype));
          gram.set(k, grams.back());
          x.set(k, xs.back());
        }
        backend.ops->scale_rows(*backend.stream, gram.batch, x.batch, factors.batch, {kSafety});
        backend.wait();
        int64_t wrong = 0;
        const double unit = tolerance::roundoff(dtype) + 40 * tolerance::roundoff(DType::kF32);
        for (int64_t k = 0; k < kCount; ++k) {
          const Matrix &r = grams[static_cast<size_t>(k)], &before = xs[static_cast<size_t>(k)];
          std::vector<double> s;
          for (int64_t i = 0; i < m; ++i) {
            double sum = 0;
            for (int64_t j = 0; j < m; ++j) sum += std::fabs(r(i, j));
            s.push_back(1 / (static_cast<double>(kSafety) * std::sqrt(std::fmax(sum, 1e-7))));
          }
          const auto near = [&](double got, double expected) {
            // Halves below their smallest normal value are spaced by 2^-24.
            wrong += !(std::fabs(got - expected) <= unit * std::fabs(expected) + 0x1p-25);
          };
          for (int64_t i = 0; i < m; ++i) {
            const double si = s[static_cast<size_t>(i)];
            for (int64_t j = 0; j < n; ++j) near(x.get(k, i, j), before(i, j) * si);
            for (int64_t j = 0; j < m; ++j) {
              near(gram.get(k, i, j), r(i, j) * si * s[static_cast<size_t>(j)]);
              wrong += gram.get(k, i, j) != gram.get(k, j, i);
            }
            wrong += !std::isnan(x.get(k, i, n)) || !std::isnan(gram.get(k, i, m));
          }
        }
        CHECK(wrong == 0);
        const std::vector<std::vector<unsigned char>> got = {gram.bytes(), x.bytes(),
                                                             factors.bytes()};
        if (bits.empty()) bits = got;
        CHECK((got == bits));
      }
    }
  }
}

TEST_CASE("normalize: eps is added to the norm, or bounds it from below", "[ops]") {
  for (auto& backend : backends::all()) {
    for (const double size : {1.0, 1e-7, 1e-30, 1e30}) {
      for (const Normalization how :
           {Normalization{1.02f}, {1.02f, 1e-7f, 0.0f}, {1.0f, 0.0f, 1e-7f}, {1.01f, 0.5f, 0.0f}}) {
        INFO(backend.name << ", entries of " << size << ", added " << how.added << ", least "
                          << how.least);
        Matrix in = textbook::gaussian(9, 21, 5);
        for (double& v : in.v) v *= size;
        in = textbook::rounded(in, DType::kF32);
        Stored from(backend, DType::kF32, 9, 21, 1), to(backend, DType::kF16, 9, 21, 1);
        from.set(0, in);
        const auto findings = backend.memory(sizeof(Findings));
        new (findings.get()) Findings();
        backend.ops->normalize(*backend.stream, from.batch, to.batch, how,
                               static_cast<Findings*>(findings.get()));
        backend.wait();
        const double norm = textbook::frobenius(in);
        const double divisor =
            std::fmax(static_cast<double>(how.safety) * norm + static_cast<double>(how.added),
                      static_cast<double>(how.least));
        double worst = 0;
        for (int64_t i = 0; i < 9; ++i)
          for (int64_t j = 0; j < 21; ++j)
            worst = std::fmax(worst, std::fabs(to.get(0, i, j) - in(i, j) / divisor));
        CHECK(worst <= 1.1 * tolerance::roundoff(DType::kF16));
      }
    }
  }
}
