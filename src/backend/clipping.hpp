#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "backend/scalars.hpp"

// The factor that multiplies all gradients, and the global norm of the gradients. All backends
// share these formulas.

namespace muonrt {

/// The factors whose product multiplies every gradient in a step, and the flag `found_inf`. A
/// pointer is null, or points to an f32 value that the device can read.
struct GradientFactors {
  float host = 1.0f;
  const float* inverse_scale = nullptr;  // inverse of the loss scale
  const float* multiplier = nullptr;     // the caller's factor; applied after clipping
  const float* found_inf = nullptr;      // the step is skipped if this value is not 0
  bool on_device() const { return inverse_scale || multiplier || found_inf; }
};

/// Settings for clipping all gradients by their global norm.
struct NormClip {
  double norm = 0.0;              // maximum norm; 0 means no clipping
  const int64_t* sums = nullptr;  // sum of squares in kNormWords words; not read if norm is 0
};

/// The tables to which a step writes its gradient factor.
struct GradientTables {
  ParamView* params = nullptr;
  int64_t param_count = 0;
  MuonScalars* groups = nullptr;
  int64_t group_count = 0;
  AdamScalars* adam = nullptr;
  int64_t adam_count = 0;
};

/// Number of 64-bit words that store a sum of squares of f32 values exactly. Each f32 exponent has
/// two words: one adds up the lower 24 bits of the squared mantissas, and the other the upper bits.
/// The words are integers, so the order of additions does not matter, and they cannot overflow for
/// up to 2^39 elements.
constexpr int64_t kNormWords = 512;

struct SquareTerm {
  int32_t word;  // index of the word for the lower bits; the next word is for the upper bits
  int64_t low, high;
};
/// Returns the terms that x adds to the words. The terms are 0 if x is infinite or NaN.
MUONRT_HOST_DEVICE inline SquareTerm square_term(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x), exponent = bits >> 23 & 0xffu;
  const uint64_t fraction = bits & 0x7fffffu;
  if (exponent == 0xffu) return {0, 0, 0};
  const uint64_t mantissa = exponent == 0 ? fraction : fraction | 0x800000u;
  const uint64_t square = mantissa * mantissa;
  return {static_cast<int32_t>(2 * exponent), static_cast<int64_t>(square & 0xffffffu),
          static_cast<int64_t>(square >> 24)};
}

/// Returns the square root of the sum that the words represent.
MUONRT_HOST_DEVICE inline double norm_of(const int64_t* words) {
  double sum = 0.0;
  for (int exponent = 254; exponent >= 0; --exponent) {
    const int64_t* at = words + 2 * exponent;
    const double mantissas = static_cast<double>(at[1]) * 0x1p24 + static_cast<double>(at[0]);
    const int power = 2 * ((exponent == 0 ? 1 : exponent) - 150);
    sum += mantissas * std::bit_cast<double>(static_cast<uint64_t>(1023 + power) << 52);
  }
  return sqrt(sum);
}

struct GradientScale {
  float factor;
  double norm;   // norm of the gradients times the inverse scale; 0 without clipping
  bool well;     // true if found_inf is 0 and the factor is finite
  int64_t seen;  // value for Findings::factor
};
MUONRT_HOST_DEVICE inline GradientScale gradient_scale(const GradientFactors& in,
                                                       const NormClip& clip) {
  double factor = static_cast<double>(in.host);
  if (in.inverse_scale) factor *= static_cast<double>(*in.inverse_scale);
  GradientScale out{0.0f, 0.0, true, 0};
  if (clip.norm > 0.0) {
    out.norm = norm_of(clip.sums) * (factor < 0.0 ? -factor : factor);
    if (out.norm > clip.norm) factor *= clip.norm / out.norm;
  }
  if (in.multiplier) factor *= static_cast<double>(*in.multiplier);
  out.factor = static_cast<float>(factor);
  out.seen =
      static_cast<int64_t>(std::bit_cast<uint32_t>(out.factor) ^ std::bit_cast<uint32_t>(in.host));
  const bool finite = (std::bit_cast<uint32_t>(out.factor) & 0x7fffffffu) < 0x7f800000u;
  out.well = finite && !(in.found_inf && !(*in.found_inf == 0.0f));
  return out;
}

}  // namespace muonrt
