// Tests the NorMuon op with neuron rules that use no moments: row equilibration and
// renormalization.

#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <vector>

#include "reference/reference.hpp"
#include "support/backends.hpp"
#include "support/numerics/reference_ops.hpp"
#include "support/tolerances.hpp"

using namespace muonrt;
using reference::Matrix;

namespace {

/// Returns the result of a rule for `x`, whose neurons are its rows.
Matrix expected(NeuronRule rule, double target, Matrix x) {
  const double norm = reference::frobenius(x);
  if (rule == NeuronRule::kNorm) return reference::scale(target / std::fmax(norm, 1e-6), x);
  double nonzero = 0;  // number of nonzero rows, which share the norm equally
  std::vector<double> norms;
  for (int64_t i = 0; i < x.rows; ++i) {
    double squares = 0;
    for (int64_t j = 0; j < x.cols; ++j) squares += x(i, j) * x(i, j);
    norms.push_back(std::sqrt(squares));
    nonzero += squares > 0;
  }
  for (int64_t i = 0; i < x.rows; ++i)
    for (int64_t j = 0; j < x.cols; ++j)
      if (norms[static_cast<size_t>(i)] > 0)
        x(i, j) *= target * norm / std::sqrt(nonzero) / norms[static_cast<size_t>(i)];
  return x;
}

}  // namespace

TEST_CASE(
    "scale neurons: neurons get equal norms, or the matrix gets a norm, bitwise identical "
    "everywhere",
    "[ops]") {
  constexpr int64_t kCount = 3;
  auto all = backends::all();
  for (const NeuronRule rule : {NeuronRule::kEqual, NeuronRule::kNorm}) {
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const auto& [m, n] : {std::pair<int64_t, int64_t>{1, 9}, {7, 40}, {33, 64}, {65, 131}}) {
        std::vector<unsigned char> bits;
        for (auto& backend : all) {
          INFO(backend.name << ", rule " << static_cast<int>(rule) << ", " << name_of(dtype) << ", "
                            << m << " x " << n);
          const int64_t ld = n + 3, stride = m * ld + 5, bytes = kCount * stride * size_of(dtype);
          const auto memory = backend.memory(bytes), factors = backend.memory(kCount * n * 4);
          std::memset(memory.get(), 0, static_cast<size_t>(bytes));
          const MatrixBatch batch = {memory.get(), dtype, m, n, ld, kCount, stride};
          std::vector<NormuonState> states(kCount);
          std::vector<Matrix> in;
          for (int64_t k = 0; k < kCount; ++k) {
            Matrix x = reference::gaussian(m, n, static_cast<uint64_t>(7 + k));
            for (int64_t i = 0; i < m; ++i)
              for (int64_t j = 0; j < n; ++j) x(i, j) *= std::ldexp(0.02, static_cast<int>(i % 5));
            for (int64_t j = 0; m > 3 && j < n; ++j) x(3, j) = 0;
            for (int64_t i = 0; k == 2 && i < m; ++i)  // this matrix is zero
              for (int64_t j = 0; j < n; ++j) x(i, j) = 0;
            in.push_back(reference::rounded(x, dtype));
            for (int64_t i = 0; i < m; ++i)
              for (int64_t j = 0; j < n; ++j)
                reference_ops::store(batch.data, dtype, k * stride + i * ld + j,
                                     static_cast<float>(in.back()(i, j)));
            NormuonState& s = states[static_cast<size_t>(k)];
            s.stored_rows = k != 1;
            s.neurons = s.stored_rows ? m : n;
            s.factors = static_cast<float*>(factors.get()) + k * n;
            s.rule = rule;
            s.target = 0.75f;
          }
          backend.ops->normuon(*backend.stream, batch, states, {});
          backend.wait();
          double worst = 0;
          for (int64_t k = 0; k < kCount; ++k) {
            const Matrix& x = in[static_cast<size_t>(k)];
            const Matrix right =
                k == 1 ? reference::transpose(expected(rule, 0.75, reference::transpose(x)))
                       : expected(rule, 0.75, x);
            for (int64_t i = 0; i < m; ++i) {
              for (int64_t j = 0; j < n; ++j) {
                const double got = static_cast<double>(
                    reference_ops::load(batch.data, dtype, k * stride + i * ld + j));
                const double size = std::fabs(right(i, j));
                // The distance between adjacent subnormal f16 values.
                const double unit = dtype == DType::kF16 && size < 0x1p-14 ? 0x1p-24 : 0;
                worst = std::fmax(worst, (std::fabs(got - right(i, j)) - unit) / (size + 1e-4));
              }
            }
          }
          CHECK(worst <= tolerance::roundoff(dtype) + 60 * tolerance::roundoff(DType::kF32));
          const auto* first = static_cast<const unsigned char*>(memory.get());
          const std::vector<unsigned char> got(first, first + bytes);
          if (bits.empty()) bits = got;
          CHECK((got == bits));
        }
      }
    }
  }
}
