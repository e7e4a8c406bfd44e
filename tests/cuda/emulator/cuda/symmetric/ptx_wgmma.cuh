#pragma once

#include <deque>
#include <vector>

#include "cuda/symmetric/layouts.hpp"
#include "cuda/symmetric/ptx_half.cuh"
#include "cuda/symmetric/ptx_sm90.cuh"

namespace muonrt::cuda {

/// Products of a thread that are under way: they happen where it waits for them, and not before.
struct PendingProducts {
  std::deque<std::vector<std::function<void()>>> groups;
  std::vector<std::function<void()>> open;
};
inline PendingProducts& pending_products() {
  static thread_local std::vector<PendingProducts> of_thread(2048);
  return of_thread[emulator::thread_in_cluster()];
}

/// The 16 elements of a row of an operand, read as its descriptor says.
template <DType kElement>
void read_row(float (&to)[16], const unsigned char* memory, uint64_t descriptor, int row) {
  const auto start = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
  const auto group_stride = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
  if (descriptor >> 62 != 1) throw std::logic_error("a descriptor of another swizzle");
  const uint32_t first =
      start + static_cast<uint32_t>(row / 8) * group_stride + static_cast<uint32_t>(row % 8) * 128;
  for (uint32_t k = 0; k < 16; ++k) {
    uint16_t bits;
    std::memcpy(&bits, memory + swizzled_address(first + 2 * k), 2);
    to[k] = widened<kElement>(bits);
  }
}

template <DType kElement, int kCols>
void multiply_rows(float (&sums)[128], const unsigned char* memory, uint64_t a, uint64_t b,
                   bool adds, int thread) {
  float rows[2][16], col[16];
  for (int half = 0; half < 2; ++half)
    read_row<kElement>(rows[half], memory, a, wgmma_c(thread, 2 * half).row);
  for (int value = 0; value < kCols / 2; ++value) {
    if (value / 2 % 2 != 0) continue;  // the second row is done with the first
    read_row<kElement>(col, memory, b, wgmma_c(thread, value).col);
    for (int half = 0; half < 2; ++half) {
      float& sum = sums[value + 2 * half];
      if (!adds) sum = 0.0f;
      for (int k = 0; k < 16; ++k) sum += rows[half][k] * col[k];
    }
  }
}

template <DType kElement, int kCols>
void wgmma(float (&sums)[128], uint64_t a, uint64_t b, bool adds) {
  pending_products().open.push_back(
      [&sums, a, b, adds, memory = dynamic_shared(), thread = static_cast<int>(threadIdx.x % 128)] {
        multiply_rows<kElement, kCols>(sums, memory, a, b, adds, thread);
      });
}
inline void wgmma_fence() {}
inline void wgmma_commit() {
  PendingProducts& mine = pending_products();
  mine.groups.push_back(std::move(mine.open));
  mine.open.clear();
}
/// The whole warpgroup waits together, as the instruction does.
template <int kPending>
void wgmma_wait() {
  auto& groups = pending_products().groups;
  for (; groups.size() > kPending; groups.pop_front())
    for (const auto& product : groups.front()) product();
  warpgroup_sync(0);
}
inline void wgmma_settle(float (&)[128]) {}

}  // namespace muonrt::cuda
