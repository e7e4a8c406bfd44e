#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <vector>

#include "block.hpp"
#include "cuda/symmetric/layouts.hpp"
#include "cuda/symmetric/ptx_half.cuh"

namespace muonrt::cuda {

inline unsigned char* dynamic_shared() {
  return emulator::shared_memory(emulator::block_in_cluster());
}

/// Asynchronous copies of a thread: they happen where it waits for them, and not before.
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
    throw std::logic_error("an asynchronous copy that is not aligned");
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

constexpr size_t kLanes = 32;
inline size_t first_of_warp() { return threadIdx.x / kLanes * kLanes; }

inline void load_matrices(uint32_t (&words)[4], const void* row) {
  const auto* rows = reinterpret_cast<const void* const*>(
      emulator::meet(first_of_warp(), kLanes, &row, sizeof row));
  const size_t lane = threadIdx.x % kLanes;
  for (size_t i = 0; i < 4; ++i)
    std::memcpy(&words[i], static_cast<const char*>(rows[8 * i + lane / 4]) + lane % 4 * 4, 4);
}

/// The 16 x 8 of a warp from all lanes' fragments, by the maps of layouts.hpp.
template <DType kElement>
void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const uint32_t mine[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const auto* all = reinterpret_cast<const uint32_t(*)[6]>(
      emulator::meet(first_of_warp(), kLanes, mine, sizeof mine));
  const int lane = static_cast<int>(threadIdx.x % kLanes);
  // Rows and columns of this lane's values lie with the four lanes that share their quotient.
  float rows[2][16], cols[2][16];
  for (int quarter = 0; quarter < 4; ++quarter)
    for (int half = 0; half < 2; ++half)
      for (int deep = 0; deep < 2; ++deep) {
        const int at = mma_a(quarter, 2 * deep).col;
        const uint32_t word = all[lane / 4 * 4 + quarter][half + 2 * deep];
        rows[half][at] = widened<kElement>(static_cast<uint16_t>(word));
        rows[half][at + 1] = widened<kElement>(static_cast<uint16_t>(word >> 16));
        const uint32_t other = all[(mma_c(lane, half).col) * 4 + quarter][4 + deep];
        cols[half][at] = widened<kElement>(static_cast<uint16_t>(other));
        cols[half][at + 1] = widened<kElement>(static_cast<uint16_t>(other >> 16));
      }
  for (int v = 0; v < 4; ++v)
    for (int k = 0; k < 16; ++k) c[v] += rows[v / 2][k] * cols[v % 2][k];
}

}  // namespace muonrt::cuda
