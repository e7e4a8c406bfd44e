#pragma once

#include <cstdint>

// One access of a thread to 16 bytes of device memory, at multiples of 16. Of an assignment of 16
// bytes nvcc 13.0 makes four stores of 4 in some kernels, each of a warp's then in 32 sectors.
// Source: PTX ISA 9.0, ld and st.

namespace muonrt::cuda {

/// Bytes, of elements of any dtype.
struct [[gnu::may_alias]] alignas(16) Vec16 {
  uint32_t word[4];
};

__device__ inline Vec16 load_vec16(const void* from) {
  Vec16 x;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.word[0]), "=r"(x.word[1]), "=r"(x.word[2]), "=r"(x.word[3])
               : "l"(__cvta_generic_to_global(from))
               : "memory");
  return x;
}

__device__ inline void store_vec16(void* to, const Vec16& x) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
               "r"(x.word[0]), "r"(x.word[1]), "r"(x.word[2]), "r"(x.word[3])
               : "memory");
}

}  // namespace muonrt::cuda
