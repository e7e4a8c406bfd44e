#pragma once

#include <cstdint>

#include "cuda/symmetric/ptx_sm75.cuh"
#include "cuda/symmetric/tensor_map.hpp"

// Instructions of compute capability 9.0a. Each function is one instruction. Source: PTX ISA 9.0.

namespace muonrt::cuda {

/// Returns the index of the thread block in its cluster.
__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Barriers do not have the modifier .aligned, because a single thread of a warp may arrive from a
// divergent branch.

/// Waits for all threads of the cluster. Afterwards their earlier writes to shared memory are
/// visible to all threads of the cluster.
__device__ inline void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;" ::
          : "memory");
}
/// Waits for the 128 threads of a warpgroup.
__device__ inline void warpgroup_sync(int group) {
  asm volatile("barrier.sync %0, 128;" ::"r"(group + 1) : "memory");
}
/// Returns true in one lane. All lanes of a warp must call this function. It lets the compiler know
/// that only one thread continues.
__device__ inline bool elect_one() {
  uint32_t elected;
  asm volatile(
      "{\n.reg .pred is;\n"
      "elect.sync _|is, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, is;\n}"
      : "=r"(elected)::"memory");
  return elected != 0;
}
template <int kCount>
__device__ inline void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ inline void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

/// Waits until the previous launches have ended and their writes are visible. Does not wait in a
/// launch that is not programmatic, because such a launch begins after the previous ones have
/// ended.
__device__ inline void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
/// Lets the next programmatic launch begin after all thread blocks have called this function or
/// ended.
__device__ inline void griddepcontrol_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// Initializes an mbarrier in shared memory. A phase ends when threads have arrived `arrivals`
/// times and all announced bytes have been received.
__device__ inline void mbarrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}
/// Makes initialized barriers visible to TMA copies and to the other block of the cluster.
__device__ inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
/// Arrives at the barrier with the same offset in block `rank` of the cluster. The instruction uses
/// the default, .release.cta, which CUTLASS uses, too. With .cluster, it would fence the memory of
/// the whole GPU. This fence is not needed, because the arrival only signals that memory has been
/// read: it passes no value to the other block.
__device__ inline void mbarrier_arrive_remote(uint64_t* barrier, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %0, %1;\n"
      "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(barrier)),
      "r"(rank)
      : "memory");
}
__device__ inline void mbarrier_arrive_expect_tx(uint64_t* barrier, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
}
/// Waits until the phase with this parity has ended. The instruction uses the default,
/// .acquire.cta, which CUTLASS uses, too. With .cluster, each wait would invalidate the L1 cache.
/// The invalidation is not needed, because TMA copies make their bytes visible before they count
/// them, and no thread of the other block writes to this memory.
__device__ inline void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again%=;\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

/// Stores four floats at a multiple of 16 bytes in this block's shared memory.
__device__ inline void store_four(float* to, const float* from) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(to)), "f"(from[0]),
               "f"(from[1]), "f"(from[2]), "f"(from[3])
               : "memory");
}
/// Loads four floats from the same offset in block `rank` of the cluster.
__device__ inline void load_four_of(float* to, const float* from, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}"
      : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
      : "r"(shared_address(from)), "r"(rank)
      : "memory");
}

/// Prefetches a tensor map.
__device__ inline void prefetch_tensormap(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
/// Copies a box of a matrix to shared memory, and counts its bytes at `barrier`.
__device__ inline void tma_load(void* to, const TensorMap& map, int col, int row, int matrix,
                                uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
      "l"(&map), "r"(col), "r"(row), "r"(matrix), "r"(shared_address(barrier))
      : "memory");
}
/// Copies a box to the same offset in each block of the cluster whose bit is set in `blocks`.
/// Counts the bytes at the barrier of each of these blocks.
__device__ inline void tma_load_multicast(void* to, const TensorMap& map, int col, int row,
                                          int matrix, uint64_t* barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
      "l"(&map), "r"(col), "r"(row), "r"(matrix), "r"(shared_address(barrier)), "h"(blocks)
      : "memory");
}
/// Copies a box from shared memory to a matrix.
__device__ inline void tma_store(const TensorMap& map, int col, int row, int matrix,
                                 const void* from) {
  asm volatile(
      "cp.async.bulk.tensor.3d.global.shared::cta.bulk_group [%0, {%1, %2, %3}], [%4];" ::"l"(&map),
      "r"(col), "r"(row), "r"(matrix), "r"(shared_address(from))
      : "memory");
}
__device__ inline void tma_store_commit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
/// Waits until this thread's stores have read shared memory, which may then be overwritten.
__device__ inline void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
/// Waits until this thread's stores are complete.
__device__ inline void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
/// Makes this thread's writes to shared memory visible to TMA stores.
__device__ inline void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Stores four 8 x 8 matrices. Lane 8 i + r passes the address of row r of matrix i.
__device__ inline void stmatrix(void* row, uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
      "r"(w0), "r"(w1), "r"(w2), "r"(w3)
      : "memory");
}
/// Like stmatrix, but stores the transpose of each matrix.
__device__ inline void stmatrix_trans(void* row, uint32_t w0, uint32_t w1, uint32_t w2,
                                      uint32_t w3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   shared_address(row)),
               "r"(w0), "r"(w1), "r"(w2), "r"(w3)
               : "memory");
}

}  // namespace muonrt::cuda
