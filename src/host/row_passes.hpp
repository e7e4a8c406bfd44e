#pragma once

#include <bit>
#include <cstdint>

#include "backend/scalars.hpp"
#include "backend/update_rules.hpp"
#include "base/dtype.hpp"
#include "host/isa.hpp"

// The inner loops over n neighbouring elements. Each element's result follows from that element
// alone, so a row may be cut anywhere. Arrays of one call do not overlap.

namespace muonrt::host {

/// Bits of the smallest |x| in f32 that is not finite once stored as T: for bf16 that is half-way
/// from its largest value to the next power of two.
template <class T>
inline constexpr int32_t kEndOfFinite = 0x7f800000;
template <>
inline constexpr int32_t kEndOfFinite<bf16> = 0x7f7f8000;

/// 1 if x, stored as T, is infinite or NaN.
template <class T>
MUONRT_ALWAYS_INLINE uint32_t not_finite_as(float x) {
  return (std::bit_cast<int32_t>(x) & 0x7fffffff) >= kEndOfFinite<T>;
}

/// out <- cast(direction); the momentum is read, not written. @return 1 if what was written is not
/// finite, which any gradient or momentum that is not brings about.
template <class Grad, class Wire>
struct DirectionPass {
  static MUONRT_ALWAYS_INLINE uint32_t run(const Grad* __restrict grad,
                                           const float* __restrict momentum, Wire* __restrict out,
                                           int64_t n, const MuonScalars* scalars) {
    const MuonScalars s = *scalars;
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; ++i) {
      const float g = to_f32(grad[i]) * s.grad_scale;
      const float u = direction(next_momentum(momentum[i], g, s), g, s);
      bad |= not_finite_as<Wire>(u);
      out[i] = from_f32<Wire>(u);
    }
    return bad;
  }
};

/// Momentum, decay and update of n weights. With `kMaster` the f32 master is the weight and the
/// parameter its rounding.
template <class Param, class Grad, class Wire, bool kMaster>
struct CommitPass {
  static MUONRT_ALWAYS_INLINE void run(Param* __restrict param, float* __restrict master,
                                       float* __restrict momentum, const Grad* __restrict grad,
                                       const Wire* __restrict update, int64_t n, float scale,
                                       const MuonScalars* scalars) {
    const MuonScalars s = *scalars;
    for (int64_t i = 0; i < n; ++i) {
      momentum[i] = next_momentum(momentum[i], to_f32(grad[i]) * s.grad_scale, s);
      const float w =
          muon_update(kMaster ? master[i] : to_f32(param[i]), to_f32(update[i]), scale, s);
      if (kMaster) master[i] = w;
      param[i] = from_f32<Param>(w);
    }
  }
};

template <class Param, class Grad, bool kMaster>
struct AdamPass {
  static MUONRT_ALWAYS_INLINE void run(Param* __restrict param, float* __restrict master,
                                       float* __restrict first, float* __restrict second,
                                       const Grad* __restrict grad, int64_t n,
                                       const AdamScalars* scalars) {
    const AdamScalars s = *scalars;
    for (int64_t i = 0; i < n; ++i) {
      float m = first[i], v = second[i];
      const float w = adamw_update(kMaster ? master[i] : to_f32(param[i]),
                                   to_f32(grad[i]) * s.grad_scale, m, v, s);
      first[i] = m;
      second[i] = v;
      if (kMaster) master[i] = w;
      param[i] = from_f32<Param>(w);
    }
  }
};

/// @return 1 if a value times `scale` is not finite, or if its square is not (kSquare).
template <class T, bool kSquare>
struct ScanPass {
  static MUONRT_ALWAYS_INLINE uint32_t run(const T* __restrict values, float scale, int64_t n) {
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; ++i) {
      const float x = to_f32(values[i]) * scale;
      bad |= not_finite_as<float>(kSquare ? x * x : x);
    }
    return bad;
  }
};

/// out <- cast(in). @return 1 if what was written is not finite.
template <class From, class To>
struct CastPass {
  static MUONRT_ALWAYS_INLINE uint32_t run(const From* __restrict in, To* __restrict out,
                                           int64_t n) {
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; ++i) {
      const float x = to_f32(in[i]);
      bad |= not_finite_as<To>(x);
      out[i] = from_f32<To>(x);
    }
    return bad;
  }
};

/// out (cols x rows) <- cast(in (rows x cols) transposed), in tiles that stay in the first cache.
/// @return 1 if what was written is not finite.
template <class From, class To>
struct TransposePass {
  static constexpr int64_t kTile = 32;
  static MUONRT_ALWAYS_INLINE uint32_t run(const From* __restrict in, int64_t in_ld,
                                           To* __restrict out, int64_t out_ld, int64_t rows,
                                           int64_t cols) {
    To tile[kTile][kTile];
    uint32_t bad = 0;
    for (int64_t r = 0; r < rows; r += kTile) {
      const int64_t height = rows - r < kTile ? rows - r : kTile;
      for (int64_t c = 0; c < cols; c += kTile) {
        const int64_t width = cols - c < kTile ? cols - c : kTile;
        for (int64_t i = 0; i < height; ++i)
          bad |= CastPass<From, To>::run(in + (r + i) * in_ld + c, tile[i], width);
        for (int64_t j = 0; j < width; ++j) {
          To* line = out + (c + j) * out_ld + r;
          for (int64_t i = 0; i < height; ++i) line[i] = tile[i][j];
        }
      }
    }
    return bad;
  }
};

}  // namespace muonrt::host
