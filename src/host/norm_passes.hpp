#pragma once

#include <bit>
#include <cstdint>

#include "base/checked.hpp"
#include "base/dtype.hpp"
#include "host/isa.hpp"

namespace muonrt::host {

/// Computes the pairwise sum of a sequence of values. The order of the additions depends only on
/// the number of values.
class PairwiseSum {
 public:
  void add(float value) {
    int level = 0;
    for (int64_t bit = count_; bit & 1; bit >>= 1) value = partial_[level++] + value;
    partial_[level] = value;
    ++count_;
  }
  float total() const {
    float sum = 0.0f;
    for (int level = 0; count_ >> level; ++level)
      if (count_ >> level & 1) sum = partial_[level] + sum;
    return sum;
  }

 private:
  float partial_[63];  // partial_[l] is a sum of 2^l values if bit l of count_ is set
  int64_t count_ = 0;
};

/// Returns the largest |x| as the bits of an f32. They are 0 if all values are zero, and at least
/// 0x7f800000 if a value is non-finite.
template <class T>
struct LargestPass {
  static MUONRT_ALWAYS_INLINE int32_t run(const T* __restrict row, int64_t n) {
    int32_t largest = 0;
    for (int64_t i = 0; i < n; ++i) {
      const int32_t x = std::bit_cast<int32_t>(to_f32(row[i])) & 0x7fffffff;
      largest = x > largest ? x : largest;
    }
    return largest;
  }
};

/// Returns the sum of the squares of a row that is scaled by up * up2. The order of the additions
/// depends only on n. A block of 2048 elements is summed as 256 partial sums, where element i
/// belongs to partial sum i mod 256; a warp of a GPU reads 256 consecutive elements at a time. Then
/// the upper half of the partial sums is added to the lower half until one value is left. The
/// blocks are added pairwise.
template <class T>
struct SquaresPass {
  static constexpr int64_t kChains = 256, kBlock = 2048, kEight = 8, kSums = kChains / kEight;

  static MUONRT_ALWAYS_INLINE float run(const T* __restrict row, int64_t n, float up, float up2) {
    PairwiseSum blocks;
    for (int64_t begin = 0; begin < n; begin += kBlock)
      blocks.add(block(row + begin, n - begin < kBlock ? n - begin : kBlock, up, up2));
    return blocks.total();
  }

 private:
  static MUONRT_ALWAYS_INLINE float block(const T* __restrict x, int64_t n, float up, float up2) {
    float chains[kChains];
    const int64_t first = n < kChains ? n : kChains, eights = ceil_div(first, kEight);
    for (int64_t c = 0; c < first; ++c) chains[c] = square(x[c], up, up2);
    for (int64_t c = first; c < eights * kEight; ++c) chains[c] = 0.0f;
    // The variable bound prevents GCC from interchanging the two loops. After an interchange, the
    // inner loop would read memory in strides.
    for (int64_t i = kChains; i < n; i += kChains) {
      const int64_t count = n - i < kChains ? n - i : kChains;
      for (int64_t c = 0; c < count; ++c) chains[c] += square(x[i + c], up, up2);
    }
    return halved(chains, eights);
  }

  /// Adds the partial sums.
  /// @param eights  The number of groups of eight partial sums that have elements. All other
  ///     partial sums are zero.
  static MUONRT_ALWAYS_INLINE float halved(const float* __restrict chains, int64_t eights) {
    float sum[kSums] = {};
    for (int64_t i = 0; i < eights; ++i) {
      const float* x = chains + kEight * i;
      sum[i] = ((x[0] + x[4]) + (x[2] + x[6])) + ((x[1] + x[5]) + (x[3] + x[7]));
    }
#pragma GCC unroll 5
    for (int64_t width = kSums / 2; width > 0; width /= 2) {
#pragma GCC unroll 16
      for (int64_t i = 0; i < width; ++i) sum[i] += sum[i + width];
    }
    return sum[0];
  }

  static MUONRT_ALWAYS_INLINE float square(T x, float up, float up2) {
    const float y = to_f32(x) * up * up2;
    return y * y;
  }
};

/// Returns the sum of |x|. Element i belongs to one of 32 partial sums, i mod 32. Then the upper
/// half of the partial sums is added to the lower half until one value is left.
template <class T>
struct AbsoluteSumPass {
  static MUONRT_ALWAYS_INLINE float run(const T* __restrict row, int64_t n) {
    constexpr int64_t kChains = 32;
    float chains[kChains] = {};
    int64_t i = 0;
    for (; i + kChains <= n; i += kChains)
      for (int64_t c = 0; c < kChains; ++c) chains[c] += magnitude(to_f32(row[i + c]));
    for (int64_t c = 0; i + c < n; ++c) chains[c] += magnitude(to_f32(row[i + c]));
    for (int64_t width = kChains / 2; width > 0; width /= 2)
      for (int64_t c = 0; c < width; ++c) chains[c] += chains[c + width];
    return chains[0];
  }

 private:
  static MUONRT_ALWAYS_INLINE float magnitude(float x) {
    return std::bit_cast<float>(std::bit_cast<int32_t>(x) & 0x7fffffff);
  }
};

/// Returns the sum of x[i] y[i], with the additions in the same order as in AbsoluteSumPass. The
/// two arrays may be the same.
template <class T>
struct DotPass {
  static MUONRT_ALWAYS_INLINE float run(const T* x, const float* y, int64_t n) {
    constexpr int64_t kChains = 32;
    float chains[kChains] = {};
    int64_t i = 0;
    for (; i + kChains <= n; i += kChains)
      for (int64_t c = 0; c < kChains; ++c) chains[c] += to_f32(x[i + c]) * y[i + c];
    for (int64_t c = 0; i + c < n; ++c) chains[c] += to_f32(x[i + c]) * y[i + c];
    for (int64_t width = kChains / 2; width > 0; width /= 2)
      for (int64_t c = 0; c < width; ++c) chains[c] += chains[c + width];
    return chains[0];
  }
};

/// row <- row * factor.
template <class T>
struct FactorPass {
  static MUONRT_ALWAYS_INLINE void run(T* row, int64_t n, float factor) {
    for (int64_t i = 0; i < n; ++i) row[i] = from_f32<T>(to_f32(row[i]) * factor);
  }
};

/// row[i] <- row[i] * (factors[i] * factor). This order of multiplication keeps a symmetric matrix
/// exactly symmetric.
template <class T>
struct FactorsPass {
  static MUONRT_ALWAYS_INLINE void run(T* __restrict row, const float* __restrict factors,
                                       int64_t n, float factor) {
    for (int64_t i = 0; i < n; ++i) row[i] = from_f32<T>(to_f32(row[i]) * (factors[i] * factor));
  }
};

/// out <- cast(in * up * up2 / divisor). `out` and `in` may be the same.
template <class From, class To>
struct DividePass {
  static MUONRT_ALWAYS_INLINE void run(const From* in, To* out, int64_t n, float up, float up2,
                                       float divisor) {
    for (int64_t i = 0; i < n; ++i) out[i] = from_f32<To>(to_f32(in[i]) * up * up2 / divisor);
  }
};

}  // namespace muonrt::host
