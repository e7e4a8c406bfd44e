#pragma once

#include <cstdint>
#include <utility>

#include "host/isa.hpp"

namespace muonrt::host {

/// A vector of 16 words of 32 bits. With less than AVX-512 it occupies several registers.
using Vec16 = uint32_t __attribute__((vector_size(64)));

/// Exchanges parts of two rows whose distance is kBit: a(i + kBit) and b(i), for each i without the
/// bit kBit.
template <int kBit, int... i>
MUONRT_ALWAYS_INLINE void exchange(Vec16& a, Vec16& b, std::integer_sequence<int, i...>) {
  const Vec16 low = __builtin_shufflevector(a, b, (i & kBit ? 16 + (i ^ kBit) : i)...);
  b = __builtin_shufflevector(a, b, (i & kBit ? 16 + i : i ^ kBit)...);
  a = low;
}

template <int kBit>
MUONRT_ALWAYS_INLINE void exchange_all(Vec16* rows) {
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i)
    if (!(i & kBit)) exchange<kBit>(rows[i], rows[i + kBit], std::make_integer_sequence<int, 16>());
}

/// Transposes 16 x 16 words.
MUONRT_ALWAYS_INLINE void transpose(Vec16* rows) {
  exchange_all<8>(rows);
  exchange_all<4>(rows);
  exchange_all<2>(rows);
  exchange_all<1>(rows);
}

}  // namespace muonrt::host
