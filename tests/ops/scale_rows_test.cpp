#include <catch2/catch.hpp>
#include <cmath>

#include "ops/subjects.hpp"
#include "reference/reference.hpp"
#include "support/tolerances.hpp"

using namespace muonrt;
using namespace ops_test;

namespace {

constexpr int64_t kCount = 2;
constexpr float kSafety = 1.02f;

/// The matrices of a batch, with NaN in the padding between rows and between matrices.
struct Stored {
  Stored(DType dtype, int64_t rows, int64_t cols)
      : batch{nullptr, dtype, rows, cols, cols + 3, kCount, rows * (cols + 3) + 5},
        bytes(static_cast<size_t>(kCount * batch.stride * size_of(dtype)), 0xff) {}
  int64_t at(int64_t k, int64_t i, int64_t j) const { return k * batch.stride + i * batch.ld + j; }
  double get(int64_t k, int64_t i, int64_t j) const {
    return static_cast<double>(value_in(bytes, batch.dtype, at(k, i, j)));
  }
  void set(int64_t k, const reference::Matrix& from) {
    for (int64_t i = 0; i < from.rows; ++i)
      for (int64_t j = 0; j < from.cols; ++j)
        set_value(bytes, batch.dtype, at(k, i, j), static_cast<float>(from(i, j)));
  }
  MatrixBatch on(Machine& machine) const {
    MatrixBatch out = batch;
    out.data = machine.put(bytes);
    return out;
  }
  MatrixBatch batch;
  Bytes bytes;
};

/// Returns the number of wrong elements. Each row has the factor 1 / (safety * sqrt(row sum of the
/// Gram matrix)). Each element must be multiplied by the factor of its row and, in the Gram matrix,
/// also by the factor of its column.
int64_t wrong_elements(const Stored& gram, const Stored& x, const Stored& new_gram,
                       const Stored& new_x) {
  int64_t wrong = 0;
  const int64_t m = x.batch.rows, n = x.batch.cols;
  const double unit = tolerance::roundoff(x.batch.dtype) + 40 * tolerance::roundoff(DType::kF32);
  for (int64_t k = 0; k < kCount; ++k) {
    std::vector<double> s;
    for (int64_t i = 0; i < m; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < m; ++j) sum += std::fabs(gram.get(k, i, j));
      s.push_back(1 / (static_cast<double>(kSafety) * std::sqrt(std::fmax(sum, 1e-7))));
    }
    const auto near = [&](double got, double expected) {
      // Adjacent subnormal f16 values differ by 2^-24.
      wrong += !(std::fabs(got - expected) <= unit * std::fabs(expected) + 0x1p-25);
    };
    for (int64_t i = 0; i < m; ++i) {
      const double si = s[static_cast<size_t>(i)];
      for (int64_t j = 0; j < n; ++j) near(new_x.get(k, i, j), x.get(k, i, j) * si);
      for (int64_t j = 0; j < m; ++j) {
        near(new_gram.get(k, i, j), gram.get(k, i, j) * si * s[static_cast<size_t>(j)]);
        wrong += new_gram.get(k, i, j) != new_gram.get(k, j, i);
      }
      wrong += !std::isnan(new_x.get(k, i, n)) || !std::isnan(new_gram.get(k, i, m));
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("scale rows: rows and the Gram matrix get their factors, and it stays exactly symmetric",
          "[ops]") {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const auto& [m, n] :
         {std::pair<int64_t, int64_t>{1, 9}, {7, 40}, {33, 64}, {65, 65}, {70, 71}, {130, 9}}) {
      CAPTURE(name_of(dtype), m, n);
      Stored gram(dtype, m, m), x(dtype, m, n);
      const Stored factors(DType::kF32, 1, m);
      for (int64_t k = 0; k < kCount; ++k) {
        reference::Matrix in = reference::gaussian(m, n, static_cast<uint64_t>(90 + k));
        for (int64_t j = 0; j < n && m > 3; ++j) in(3, j) = 0;
        x.set(k, in);
        gram.set(k, reference::multiply(in, reference::transpose(in)));
      }
      const Run run = [&](Machine& machine) {
        const MatrixBatch batches[] = {gram.on(machine), x.on(machine), factors.on(machine)};
        machine.ops().scale_rows(machine.on(), batches[0], batches[1], batches[2], {kSafety});
        machine.finish();
        Results out;
        for (const MatrixBatch& b : batches)
          out.push_back(bytes_of(machine, static_cast<const unsigned char*>(b.data),
                                 kCount * b.stride * size_of(b.dtype)));
        return out;
      };
      const Results expected = of_host(run);
      Stored new_gram = gram, new_x = x;
      new_gram.bytes = expected[0];
      new_x.bytes = expected[1];
      CHECK(wrong_elements(gram, x, new_gram, new_x) == 0);
      check_everywhere(expected, run);
    }
  }
}
