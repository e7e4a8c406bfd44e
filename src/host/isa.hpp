#pragma once

// The elementwise passes are compiled for multiple instruction sets, and one is selected at run
// time. A pass is an always_inline function (`static run`) that is compiled once for each
// instruction set. No build contracts operations to fused multiply-adds, so the results are bitwise
// identical with all instruction sets, and only the speed differs.

#include <cstdint>
#include <string>
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#define MUONRT_ALWAYS_INLINE inline __attribute__((always_inline))

namespace muonrt::host {

/// Size in bytes of a vector in manually vectorized loops. On arm64, it is the size of a NEON
/// register, because g++ keeps longer vectors in memory.
#if defined(__aarch64__)
inline constexpr int64_t kVectorBytes = 16;
#else
inline constexpr int64_t kVectorBytes = 32;
#endif

enum class Isa { kBaseline, kAvx2, kAvx512 };

/// Returns the widest instruction set that this machine and its operating system support.
Isa best_isa();

/// Returns "x86-64", "avx2" or "avx512" on x86-64, "arm64" (with NEON) on arm64, and "generic" on
/// other machines.
const char* name_of(Isa isa);

/// Returns the name of the best instruction set. The ranks compare these names. On arm64, the name
/// includes the length of SVE vectors: the results of oneDNN depend on this length, but oneDNN does
/// not report it.
std::string isa_identity();

#if defined(__x86_64__)
template <class Pass, class... Args>
__attribute__((target("avx2"))) auto run_avx2(Args... args) {
  return Pass::run(args...);
}
template <class Pass, class... Args>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) auto run_avx512(Args... args) {
  return Pass::run(args...);
}
#endif

/// Calls Pass::run(args...) compiled for `isa`.
template <class Pass, class... Args>
auto run_pass(Isa isa, Args... args) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return run_avx512<Pass>(args...);
  if (isa == Isa::kAvx2) return run_avx2<Pass>(args...);
#endif
  (void)isa;
  return Pass::run(args...);
}

// Non-temporal stores write whole cache lines to memory without reading them first.

/// The alignment in bytes of a destination of stream_bytes(): a cache line.
inline constexpr int64_t kStreamed = 64;

#if defined(__x86_64__)

inline constexpr bool kCanStream = true;

/// Copies kBytes bytes, a multiple of 16. Call end_of_stream() before another thread reads them.
template <int64_t kBytes>
MUONRT_ALWAYS_INLINE void stream_bytes(const void* from, void* to) {
#pragma GCC unroll 8
  for (int64_t i = 0; i < kBytes / 16; ++i)
    _mm_stream_si128(static_cast<__m128i*>(to) + i,
                     _mm_loadu_si128(static_cast<const __m128i*>(from) + i));
}

MUONRT_ALWAYS_INLINE void end_of_stream() { _mm_sfence(); }

#else

inline constexpr bool kCanStream = false;
template <int64_t kBytes>
MUONRT_ALWAYS_INLINE void stream_bytes(const void*, void*) {}
MUONRT_ALWAYS_INLINE void end_of_stream() {}

#endif

}  // namespace muonrt::host
