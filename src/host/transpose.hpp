#pragma once

#include <cstdint>
#include <utility>

#include "host/isa.hpp"

namespace muonrt::host {

/// `type` is a vector of N elements. A vector longer than a register occupies several registers.
template <class T, int N>
struct VectorOf {
  typedef T type __attribute__((vector_size(N * sizeof(T))));
};

/// Interleaves the lower halves of `a` and `b`, or the upper halves. The result is an output
/// argument, because the ABI for returning a vector depends on the instruction set.
template <bool kUpper, class V, int... i>
MUONRT_ALWAYS_INLINE void zip(const V& a, const V& b, V& out, std::integer_sequence<int, i...>) {
  constexpr int kCount = sizeof...(i), kFirst = kUpper ? kCount / 2 : 0;
  out = __builtin_shufflevector(a, b, (kFirst + i / 2 + (i % 2 ? kCount : 0))...);
}

/// Transposes N x N elements. Each of the log2(N) rounds interleaves every row of the upper half
/// with the row at the same position in the lower half.
template <int N, class V>
MUONRT_ALWAYS_INLINE void transpose(V* rows) {
  constexpr auto kLanes = std::make_integer_sequence<int, N>();
#pragma GCC unroll 4
  for (int stage = 1; stage < N; stage *= 2) {
    V next[N];
#pragma GCC unroll 8
    for (int i = 0; i < N / 2; ++i) {
      zip<false>(rows[i], rows[i + N / 2], next[2 * i], kLanes);
      zip<true>(rows[i], rows[i + N / 2], next[2 * i + 1], kLanes);
    }
#pragma GCC unroll 16
    for (int i = 0; i < N; ++i) rows[i] = next[i];
  }
}

}  // namespace muonrt::host
