#pragma once

#include <cstdint>

#include "cuda/symmetric/ptx_sm75.cuh"
#include "cuda/symmetric/tensor_map.hpp"

// One instruction of compute capability 9.0a a function. Source: PTX ISA 9.0.

namespace muonrt::cuda {

/// The block's place in its cluster.
__device__ inline uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Barriers without .aligned: one thread of a warp may have come from a branch of its own.

/// All threads of the cluster meet; what they wrote to shared memory is visible to all.
__device__ inline void cluster_sync() {
  asm volatile(
      "barrier.cluster.arrive.release;\n"
      "barrier.cluster.wait.acquire;" ::
          : "memory");
}
/// 128 threads of a warpgroup meet.
__device__ inline void warpgroup_sync(int group) {
  asm volatile("barrier.sync %0, 128;" ::"r"(group + 1) : "memory");
}
/// True in one lane, where all lanes of a warp come. The compiler then knows that one thread goes
/// on.
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

/// Until the launches before this one have ended and what they wrote is visible. Where a launch is
/// not programmatic they have ended before it begins.
__device__ inline void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
/// A programmatic launch after this one may begin when all blocks have come here or ended.
__device__ inline void griddepcontrol_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

/// An mbarrier, in shared memory: a phase ends when `arrivals` have come and all bytes that were
/// announced.
__device__ inline void mbarrier_init(uint64_t* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}
/// Barriers that were made are visible to the copies and to the other block.
__device__ inline void fence_mbarrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void mbarrier_arrive(uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}
/// At the barrier that lies at the same place in block `rank` of the cluster. As in CUTLASS,
/// .release.cta by default: .cluster would fence the memory of the whole GPU, and this says "has
/// been read", no value goes to the other block with it.
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
/// Until the phase of this parity has ended. As in CUTLASS, .acquire.cta by default: .cluster
/// would drop the L1 cache at each wait, and TMA copies make their bytes visible themselves when
/// they count them; no thread of the other block writes any.
__device__ inline void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again%=;\n}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

/// Four floats at multiples of 16 bytes, into this block's shared memory.
__device__ inline void store_four(float* to, const float* from) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(to)), "f"(from[0]),
               "f"(from[1]), "f"(from[2]), "f"(from[3])
               : "memory");
}
/// Four floats at the same place in block `rank` of the cluster.
__device__ inline void load_four_of(float* to, const float* from, uint32_t rank) {
  asm volatile(
      "{\n.reg .b32 there;\n"
      "mapa.shared::cluster.u32 there, %4, %5;\n"
      "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}"
      : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
      : "r"(shared_address(from)), "r"(rank)
      : "memory");
}

/// Brings a map near TMA.
__device__ inline void prefetch_tensormap(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
/// A box of a matrix into shared memory; its bytes count at `barrier`.
__device__ inline void tma_load(void* to, const TensorMap& map, int col, int row, int matrix,
                                uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
      "l"(&map), "r"(col), "r"(row), "r"(matrix), "r"(shared_address(barrier))
      : "memory");
}
/// Into the same place of each block of a cluster whose bit is set, counted at the barrier of each.
__device__ inline void tma_load_multicast(void* to, const TensorMap& map, int col, int row,
                                          int matrix, uint64_t* barrier, uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(shared_address(to)),
      "l"(&map), "r"(col), "r"(row), "r"(matrix), "r"(shared_address(barrier)), "h"(blocks)
      : "memory");
}
/// A box from shared memory into a matrix.
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
/// Shared memory of this thread's stores may be written again.
__device__ inline void tma_store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
/// This thread's stores are done.
__device__ inline void tma_store_wait() {
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
/// What this thread wrote to shared memory is visible to TMA stores.
__device__ inline void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Four 8 x 8 matrices; lane 8 i + r gives the address of row r of the i-th.
__device__ inline void stmatrix(void* row, uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(shared_address(row)),
      "r"(w0), "r"(w1), "r"(w2), "r"(w3)
      : "memory");
}
/// The same, each matrix transposed.
__device__ inline void stmatrix_trans(void* row, uint32_t w0, uint32_t w1, uint32_t w2,
                                      uint32_t w3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                   shared_address(row)),
               "r"(w0), "r"(w1), "r"(w2), "r"(w3)
               : "memory");
}

}  // namespace muonrt::cuda
