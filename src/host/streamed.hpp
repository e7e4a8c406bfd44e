#pragma once

#include <cstdint>

#include "host/isa.hpp"
#if defined(__x86_64__)
#include <emmintrin.h>
#endif

// Non-temporal stores: they write whole cache lines to memory without reading them first.

namespace muonrt::host {

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
