#pragma once

#include <cstdint>

// Functions that access 16 bytes of device memory, aligned to 16 bytes, with one instruction. In
// some kernels, nvcc 13.0 splits an assignment of 16 bytes into four stores of 4 bytes. Each store
// of a warp then touches 32 sectors. Source: PTX ISA 9.0, ld and st.

namespace muonrt::cuda {

/// 16 bytes of elements of any dtype.
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
