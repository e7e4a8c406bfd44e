#include "host/gemm_epilogue.hpp"
#include "host/gemm_tile.hpp"

#if defined(__x86_64__)
#include <immintrin.h>

namespace muonrt::host {

namespace {

#define MUONRT_AVX512_BF16 "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16"

constexpr int64_t kLanes = 16;

/// Loads up to kLanes values as f32.
template <class D>
__attribute__((target(MUONRT_AVX512_BF16), always_inline)) inline __m512 load_lanes(
    const D* d, __mmask16 used) {
  if constexpr (sizeof(D) == 4) {
    return _mm512_maskz_loadu_ps(used, d);
  } else {
    const __m512i bits = _mm512_maskz_cvtepu16_epi32(used, _mm256_maskz_loadu_epi16(used, d));
    return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(used, bits, 16));
  }
}

template <class D>
__attribute__((target(MUONRT_AVX512_BF16))) bool round_rows(const TileRows<bf16, D>& rows) {
  constexpr int kNanOrSubnormal = 0x01 | 0x20 | 0x80;
  const __m512 alpha = _mm512_set1_ps(rows.alpha), beta = _mm512_set1_ps(rows.beta);
  unsigned special = 0;
  for (int64_t r = 0; r < rows.count; ++r) {
    const float* const values = rows.values + r * rows.values_ld;
    const D* const d = rows.d == nullptr ? nullptr : rows.d + r * rows.d_ld;
    bf16* const out = rows.out + r * rows.out_ld;
    bf16* const copy = rows.copy == nullptr ? nullptr : rows.copy + r * kSmallTile;
    for (int64_t i = 0; i < rows.n; i += kLanes) {
      const int64_t left = rows.n - i;
      const auto used = static_cast<__mmask16>(left >= kLanes ? 0xffffu : (1u << left) - 1);
      __m512 x = _mm512_mul_ps(alpha, load_lanes(values + i, used));
      if (d != nullptr) x = _mm512_add_ps(x, _mm512_mul_ps(beta, load_lanes(d + i, used)));
      special |= _mm512_fpclass_ps_mask(x, kNanOrSubnormal);
      const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(x);
      if (left >= kLanes) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), rounded);
      } else {
        _mm256_mask_storeu_epi16(out + i, used, rounded);
      }
      if (copy != nullptr) _mm256_storeu_si256(reinterpret_cast<__m256i*>(copy + i), rounded);
    }
  }
  return special == 0;
}

}  // namespace

template <class D>
bool round_rows_natively(const TileRows<bf16, D>& rows) {
  static const bool native =
      best_isa() == Isa::kAvx512 && __builtin_cpu_supports("avx512bf16") != 0;
  return native && round_rows(rows);
}

}  // namespace muonrt::host

#else

namespace muonrt::host {
template <class D>
bool round_rows_natively(const TileRows<bf16, D>&) {
  return false;
}
}  // namespace muonrt::host

#endif

namespace muonrt::host {
template bool round_rows_natively(const TileRows<bf16, bf16>& rows);
template bool round_rows_natively(const TileRows<bf16, float>& rows);
}  // namespace muonrt::host
