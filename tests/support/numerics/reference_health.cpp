#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/weight_bits.hpp"
#include "support/numerics/reference_ops.hpp"

namespace reference {

using namespace muonrt;

void ReferenceOps::tally(Stream&, const MatrixBatch& x, const uint16_t* low, Tally* tallies) {
  for (int64_t k = 0; k < x.count; ++k) {
    for (int64_t i = 0; i < x.rows * x.cols; ++i) {
      const int64_t at = k * x.stride + i / x.cols * x.ld + i % x.cols;
      const float value = low ? join_weight(static_cast<const uint16_t*>(x.data)[at], low[at])
                              : load(x.data, x.dtype, at);
      const auto size = static_cast<int64_t>(std::bit_cast<uint32_t>(std::fabs(value)));
      tallies[k].largest = std::max(tallies[k].largest, size);
      if (!std::isfinite(value)) {
        ++tallies[k].nonfinite;
        continue;
      }
      const LimbTerm term = limb_term(value);
      tallies[k].limbs[term.limb] += term.low;
      tallies[k].limbs[term.limb + 1] += term.middle;
      tallies[k].limbs[term.limb + 2] += term.high;
    }
  }
}

// In float64, and without keeping the order of additions: close to what others find, not equal.
void ReferenceOps::lanczos(Stream&, const MatrixBatch& x, float*, Lanczos* out) {
  const auto m = static_cast<size_t>(x.rows), n = static_cast<size_t>(x.cols);
  const auto dot = [](const std::vector<double>& a, const std::vector<double>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  };
  for (int64_t k = 0; k < x.count; ++k) {
    const auto at = [&](size_t i, size_t j) {
      return static_cast<double>(
          load(x.data, x.dtype,
               k * x.stride + static_cast<int64_t>(i) * x.ld + static_cast<int64_t>(j)));
    };
    std::vector<std::vector<double>> basis(1, std::vector<double>(m));
    for (size_t i = 0; i < m; ++i)
      basis[0][i] = static_cast<double>(lanczos_start(static_cast<int64_t>(i), x.rows));
    for (int64_t step = 0; step < std::min(x.rows, kLanczosSteps); ++step) {
      std::vector<double> product(n), image(m);
      for (size_t i = 0; i < m; ++i)
        for (size_t j = 0; j < n; ++j) product[j] += at(i, j) * basis.back()[i];
      for (size_t i = 0; i < m; ++i)
        for (size_t j = 0; j < n; ++j) image[i] += at(i, j) * product[j];
      double diagonal = 0;
      for (int pass = 0; pass < 2; ++pass) {
        for (const auto& v : basis) {
          const double c = dot(image, v);
          if (&v == &basis.back()) diagonal += c;
          for (size_t i = 0; i < m; ++i) image[i] -= c * v[i];
        }
      }
      const double beside = std::sqrt(dot(image, image));
      out[k].diagonal[step] = static_cast<float>(diagonal);
      out[k].beside[step] = static_cast<float>(beside);
      for (double& w : image) w = beside > 0 ? w / beside : 0.0;
      basis.push_back(image);
    }
  }
}

void ReferenceOps::hash_memory(Stream&, const void* memory, int64_t bytes, uint64_t* sum) {
  for (int64_t i = 0; 4 * i < bytes; ++i) {
    uint32_t word = 0;
    std::memcpy(&word, static_cast<const unsigned char*>(memory) + 4 * i,
                static_cast<size_t>(std::min<int64_t>(4, bytes - 4 * i)));
    *sum += hash_term(word, i);
  }
}

}  // namespace reference
