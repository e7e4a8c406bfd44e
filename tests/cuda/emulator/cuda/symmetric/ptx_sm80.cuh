#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <vector>

#include "cuda/kernels/ptx_half.cuh"
#include "cuda/symmetric/layouts.hpp"
#include "cuda/symmetric/ptx_sm75.cuh"

namespace muonrt::cuda {

/// Asynchronous copies of a thread. They are made when the thread waits for them, and not before.
struct PendingCopies {
  struct Copy {
    void* to;
    const void* from;
    int bytes;
  };
  std::deque<std::vector<Copy>> groups;
  std::vector<Copy> open;
};
inline PendingCopies& pending_copies() {
  static thread_local std::vector<PendingCopies> of_thread(2048);
  return of_thread[emulator::thread_in_cluster()];
}

inline void copy_async(void* to, const void* from, int bytes) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0 || reinterpret_cast<uintptr_t>(from) % 16 != 0)
    throw std::logic_error("an asynchronous copy is not aligned");
  pending_copies().open.push_back({to, from, bytes});
}
inline void copies_commit() {
  PendingCopies& mine = pending_copies();
  mine.groups.push_back(std::move(mine.open));
  mine.open.clear();
}
template <int kPending>
void copies_wait() {
  auto& groups = pending_copies().groups;
  for (; groups.size() > kPending; groups.pop_front()) {
    for (const PendingCopies::Copy& copy : groups.front()) {
      std::memset(copy.to, 0, 16);
      std::memcpy(copy.to, copy.from, static_cast<size_t>(copy.bytes));
    }
  }
}

/// The operands of one lane.
struct MmaOperands {
  float* c;
  uint32_t a[4], b[2];
};
/// Products of a warp that not all lanes have reached. A lane does not wait; the last lane computes
/// the product, which is before every later barrier.
struct PendingMma {
  struct Of {
    std::array<MmaOperands, 32> lanes;
    int come = 0;
  };
  std::deque<Of> products;
  std::array<size_t, 32> next = {};  // of each lane: the number of products that it has reached
  size_t done = 0;
};
inline PendingMma& pending_mma() {
  static thread_local std::vector<PendingMma> of_warp(64);
  return of_warp[emulator::thread_in_cluster() / 32];
}

/// Computes the 16 x 8 of a warp from the fragments of all lanes, with the layouts of layouts.hpp,
/// in the order of the depth.
template <DType kElement>
void multiply_warp(const std::array<MmaOperands, kLanes>& lanes) {
  const auto low = [](uint32_t word) { return widened<kElement>(static_cast<uint16_t>(word)); };
  float a[16][16], b[16][8], c[16][8];
  for (int lane = 0; lane < static_cast<int>(kLanes); ++lane) {
    const MmaOperands& mine = lanes[static_cast<size_t>(lane)];
    for (int w = 0; w < 4; ++w) {
      const Offset2 at = mma_a(lane, w);
      a[at.row][at.col] = low(mine.a[w]);
      a[at.row][at.col + 1] = low(mine.a[w] >> 16);
    }
    for (int w = 0; w < 2; ++w) {
      const Offset2 at = mma_b(lane, w);
      b[at.col][at.row] = low(mine.b[w]);
      b[at.col + 1][at.row] = low(mine.b[w] >> 16);
    }
    for (int v = 0; v < 4; ++v) c[mma_c(lane, v).row][mma_c(lane, v).col] = mine.c[v];
  }
  for (int row = 0; row < 16; ++row)
    for (int k = 0; k < 16; ++k)
      for (int col = 0; col < 8; ++col) c[row][col] += a[row][k] * b[k][col];
  for (int lane = 0; lane < static_cast<int>(kLanes); ++lane)
    for (int v = 0; v < 4; ++v)
      lanes[static_cast<size_t>(lane)].c[v] = c[mma_c(lane, v).row][mma_c(lane, v).col];
}

template <DType kElement>
void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  PendingMma& pending = pending_mma();
  const size_t lane = threadIdx.x % kLanes, at = pending.next[lane]++ - pending.done;
  if (at == pending.products.size()) pending.products.emplace_back();
  PendingMma::Of& product = pending.products[at];
  product.lanes[lane] = {c, {a[0], a[1], a[2], a[3]}, {b0, b1}};
  if (++product.come < static_cast<int>(kLanes)) return;
  multiply_warp<kElement>(product.lanes);
  pending.products.pop_front();
  ++pending.done;
}

}  // namespace muonrt::cuda
