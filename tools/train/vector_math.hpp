#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "train/clones.hpp"

namespace muonrt::train {

/// e^x. The float version is written for the vectoriser: no branch, no table, relative error below
/// 3e-7 on [-87, 88], clamped outside; NaN stays NaN.
MUONRT_TRAIN_INLINE double fast_exp(double x) { return std::exp(x); }

MUONRT_TRAIN_INLINE float fast_exp(float x) {
  constexpr float kLog2E = 1.44269504f;
  constexpr float kLn2High = 0.693359375f;  // few bits, so that n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4f;
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  x = x < -87.0f ? -87.0f : x;
  x = x > 88.0f ? 88.0f : x;
  const float shifted = x * kLog2E + kShift;
  const float n = shifted - kShift;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  // Taylor series; |r| <= ln(2) / 2, so the first term left out is below 6e-9.
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  // The low bits of `shifted` hold n, which belongs into the exponent.
  const uint32_t scaled = std::bit_cast<uint32_t>(p) + (std::bit_cast<uint32_t>(shifted) << 23);
  return std::bit_cast<float>(scaled);
}

/// Lanes of every sum over a row: a fixed number, so that its order does not depend on the
/// instruction set.
constexpr int64_t kSumLanes = 16;

template <class T>
MUONRT_TRAIN_INLINE T add_lanes(T* lanes) {
  for (int64_t width = kSumLanes / 2; width > 0; width /= 2) {
    for (int64_t j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  }
  return lanes[0];
}

/// Sum of term(i) for i in [0, n).
template <class T, class Term>
MUONRT_TRAIN_INLINE T sum_lanes(int64_t n, Term term) {
  T lanes[kSumLanes] = {};
  int64_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) {
    for (int64_t j = 0; j < kSumLanes; ++j) lanes[j] += term(i + j);
  }
  for (int64_t j = 0; i < n; ++i, ++j) lanes[j] += term(i);
  return add_lanes(lanes);
}

/// Largest of x[0..n); n >= 1.
template <class T>
MUONRT_TRAIN_INLINE T max_lanes(const T* x, int64_t n) {
  T lanes[kSumLanes];
  for (int64_t j = 0; j < kSumLanes; ++j) lanes[j] = x[0];
  int64_t i = 0;
  for (; i + kSumLanes <= n; i += kSumLanes) {
    for (int64_t j = 0; j < kSumLanes; ++j) lanes[j] = x[i + j] > lanes[j] ? x[i + j] : lanes[j];
  }
  for (int64_t j = 0; i < n; ++i, ++j) lanes[j] = x[i] > lanes[j] ? x[i] : lanes[j];
  T largest = lanes[0];
  for (int64_t j = 1; j < kSumLanes; ++j) largest = lanes[j] > largest ? lanes[j] : largest;
  return largest;
}

}  // namespace muonrt::train
