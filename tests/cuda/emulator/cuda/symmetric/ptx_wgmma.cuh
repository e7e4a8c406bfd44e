#pragma once

#include <algorithm>
#include <deque>
#include <vector>

#include "cuda/kernels/ptx_half.cuh"
#include "cuda/symmetric/layouts.hpp"
#include "cuda/symmetric/ptx_sm90.cuh"

namespace muonrt::cuda {

constexpr int kWarpgroup = 128, kWgmmaRows = 64, kWgmmaDepth = 16, kWgmmaCols = 256;

/// A thread's part of a product in flight.
struct PendingProduct {
  float* sums;
  uint64_t a, b;
  const unsigned char* memory;
  int cols;
  bool adds;
  void (*multiply)(const PendingProduct* const (&of)[kWarpgroup]);
};
/// Products in flight. They are computed only when the warpgroup waits for them.
struct PendingProducts {
  std::deque<std::vector<PendingProduct>> groups;
  std::vector<PendingProduct> open;
};
inline PendingProducts& pending_products() {
  static thread_local std::vector<PendingProducts> of_thread(2048);
  return of_thread[emulator::thread_in_cluster()];
}

/// Reads the 16 elements of one row of the operand that `descriptor` describes. In `to`, they are
/// stored `apart` elements apart.
template <DType kElement>
void read_row(float* to, size_t apart, const unsigned char* memory, uint64_t descriptor, int row) {
  const auto start = static_cast<uint32_t>(descriptor & 0x3fff) << 4;
  const auto group_stride = static_cast<uint32_t>(descriptor >> 32 & 0x3fff) << 4;
  if (descriptor >> 62 != 1) throw std::logic_error("the descriptor has another swizzle");
  const uint32_t first =
      start + static_cast<uint32_t>(row / 8) * group_stride + static_cast<uint32_t>(row % 8) * 128;
  for (uint32_t chunk = 0; chunk < 2; ++chunk) {
    uint16_t bits[kChunk];
    std::memcpy(bits, memory + swizzled_address(first + 16 * chunk), sizeof bits);
    for (size_t k = 0; k < kChunk; ++k)
      to[(kChunk * chunk + k) * apart] = widened<kElement>(bits[k]);
  }
}

/// Returns the address, before the swizzle, of a chunk of eight columns at one depth of an MN-major
/// operand. Source: PTX ISA 9.0, strides of the matrix descriptor for swizzled MN-major layouts.
inline uint32_t chunk_of_mn(uint64_t descriptor, int k, int col) {
  const auto field = [=](int bit) {
    return static_cast<uint32_t>(descriptor >> bit & 0x3fff) << 4;
  };
  if (descriptor >> 62 != 1) throw std::logic_error("the descriptor has another swizzle");
  return field(0) + static_cast<uint32_t>(col / 64) * field(16) +
         static_cast<uint32_t>(k / 8) * field(32) + static_cast<uint32_t>(k % 8) * 128 +
         static_cast<uint32_t>(col % 64) * 2;
}

/// Computes a product of 64 x cols for a warpgroup from shared memory, and adds it to the sums of
/// all threads. The terms are added in order of the depth.
template <DType kElement, Major kB>
void multiply_warpgroup(const PendingProduct* const (&of)[kWarpgroup]) {
  const PendingProduct& p = *of[0];
  static thread_local float b[kWgmmaDepth][kWgmmaCols];
  for (int col = 0; kB == Major::kK && col < p.cols; ++col)
    read_row<kElement>(&b[0][col], kWgmmaCols, p.memory, p.b, col);
  for (int k = 0; kB == Major::kMN && k < kWgmmaDepth; ++k)
    for (int col = 0; col < p.cols; col += kChunk) {
      uint16_t bits[kChunk];
      std::memcpy(bits, p.memory + swizzled_address(chunk_of_mn(p.b, k, col)), sizeof bits);
      for (int i = 0; i < kChunk; ++i) b[k][col + i] = widened<kElement>(bits[i]);
    }
  for (int row = 0; row < kWgmmaRows; ++row) {
    float a[kWgmmaDepth], sums[kWgmmaCols];
    read_row<kElement>(a, 1, p.memory, p.a, row);
    // Four threads share a row. Each of them holds two adjacent columns of every eight columns.
    const int first = row / 16 * 32 + row % 8 * 4, half = row / 8 % 2;
    const auto for_values = [&](const auto& visit) {
      for (int thread = first; thread < first + 4; ++thread)
        for (int value = 2 * half; value < p.cols / 2; value += 4)
          for (int v = value; v < value + 2; ++v)
            visit(of[thread]->sums[v], sums[wgmma_c(thread, v).col]);
    };
    if (p.adds) {
      for_values([](const float& theirs, float& sum) { sum = theirs; });
    } else {
      std::fill(sums, sums + p.cols, 0.0f);
    }
    for (int k = 0; k < kWgmmaDepth; ++k)
      for (int col = 0; col < p.cols; ++col) sums[col] += a[k] * b[k][col];
    for_values([](float& theirs, const float& sum) { theirs = sum; });
  }
}

/// Completes all groups of a warpgroup except the last kPending. Its threads contribute their
/// products in flight.
template <int kPending>
void finish_groups(const unsigned char* all) {
  const auto* threads = reinterpret_cast<PendingProducts* const*>(all);
  const PendingProduct* of[kWarpgroup];
  while (threads[0]->groups.size() > kPending) {
    const size_t products = threads[0]->groups.front().size();
    for (size_t i = 0; i < products; ++i) {
      for (int t = 0; t < kWarpgroup; ++t) {
        of[t] = &threads[t]->groups.front().at(i);
        const bool same = of[t]->a == of[0]->a && of[t]->b == of[0]->b &&
                          of[t]->cols == of[0]->cols && of[t]->adds == of[0]->adds;
        if (!same) throw std::logic_error("threads of a warpgroup have different products");
      }
      of[0]->multiply(of);
    }
    for (int t = 0; t < kWarpgroup; ++t) threads[t]->groups.pop_front();
  }
}

template <DType kElement, int kCols, Major kB = Major::kK, int kSums>
void wgmma(float (&sums)[kSums], uint64_t a, uint64_t b, bool adds) {
  pending_products().open.push_back(
      {sums, a, b, dynamic_shared(), kCols, adds, multiply_warpgroup<kElement, kB>});
}
inline void wgmma_fence() {}
inline void wgmma_commit() {
  PendingProducts& mine = pending_products();
  mine.groups.push_back(std::move(mine.open));
  mine.open.clear();
}
/// Waits for products. The instruction requires all threads of the warpgroup to wait together.
template <int kPending>
void wgmma_wait() {
  PendingProducts* mine = &pending_products();
  emulator::run_as_one(threadIdx.x / kWarpgroup * kWarpgroup, kWarpgroup, &mine, sizeof mine,
                       finish_groups<kPending>);
}
template <int kSums>
void wgmma_settle(float (&)[kSums]) {}

}  // namespace muonrt::cuda
