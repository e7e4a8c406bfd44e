#pragma once

#include <cstdint>

// Instructions of compute capability 7.5 that the kernels for large and for small tiles use. Each
// function is one instruction. Source: PTX ISA 9.0.

namespace muonrt::cuda {

/// Returns the block's dynamic shared memory, whose size is set at the launch. The memory is
/// aligned for the swizzle.
__device__ inline unsigned char* dynamic_shared() {
  extern __shared__ __align__(1024) unsigned char memory[];
  return memory;
}

__device__ inline uint32_t shared_address(const void* memory) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(memory));
}

/// Waits for all threads of the warp.
__device__ inline void warp_sync() { asm volatile("bar.warp.sync 0xffffffff;" ::: "memory"); }

/// Returns `value` unchanged. The compiler must assume that each call may return a different value.
/// It therefore does not keep numbers computed from the result in registers between calls.
__device__ inline int not_hoisted(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

/// Loads four 8 x 8 matrices. Lane 8 i + r passes the address of row r of matrix i.
__device__ inline void ldmatrix(uint32_t (&words)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(shared_address(row))
               : "memory");
}

}  // namespace muonrt::cuda
