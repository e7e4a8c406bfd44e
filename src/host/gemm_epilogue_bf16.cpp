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

/// Rounds kLanes values, or the first `left` values if kFull is false. Stores all kLanes results to
/// `copy` if it is not null. Returns which values the processor does not round as muonrt does.
template <bool kFull, class D>
__attribute__((target(MUONRT_AVX512_BF16), always_inline)) inline __mmask16 round_lanes(
    const float* values, __m512 alpha, const D* d, __m512 beta, int64_t left, bf16* out,
    bf16* copy) {
  constexpr int kNanOrSubnormal = 0x01 | 0x20 | 0x80;
  const auto used = static_cast<__mmask16>(kFull ? 0xffffu : (1u << left) - 1);
  __m512 x = _mm512_mul_ps(alpha, load_lanes(values, used));
  if (d != nullptr) x = _mm512_add_ps(x, _mm512_mul_ps(beta, load_lanes(d, used)));
  const __m256i rounded = (__m256i)_mm512_cvtneps_pbh(x);
  if (kFull) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), rounded);
  } else {
    _mm256_mask_storeu_epi16(out, used, rounded);
  }
  if (copy != nullptr) _mm256_storeu_si256(reinterpret_cast<__m256i*>(copy), rounded);
  return _mm512_fpclass_ps_mask(x, kNanOrSubnormal);
}

template <class D>
__attribute__((target(MUONRT_AVX512_BF16))) bool round_rows(const TileRows<bf16, D>& rows) {
  const __m512 alpha = _mm512_set1_ps(rows.alpha), beta = _mm512_set1_ps(rows.beta);
  const int64_t n = rows.n, full = n - n % kLanes, count = rows.count;
  __mmask16 special = 0;
  for (int64_t r = 0; r < count; ++r) {
    const float* const values = rows.values + r * rows.values_ld;
    const D* const d = rows.d == nullptr ? nullptr : rows.d + r * rows.d_ld;
    bf16* const out = rows.out + r * rows.out_ld;
    bf16* const copy = rows.copy == nullptr ? nullptr : rows.copy + r * kSmallTile;
    const auto d_at = [&](int64_t i) { return d == nullptr ? nullptr : d + i; };
    const auto copy_at = [&](int64_t i) { return copy == nullptr ? nullptr : copy + i; };
    for (int64_t i = 0; i < full; i += kLanes)
      special = _kor_mask16(special, round_lanes<true>(values + i, alpha, d_at(i), beta, kLanes,
                                                       out + i, copy_at(i)));
    if (full < n)
      special = _kor_mask16(special, round_lanes<false>(values + full, alpha, d_at(full), beta,
                                                        n - full, out + full, copy_at(full)));
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
