#pragma once

#include <cstdint>
#include <cstring>

#include "block.hpp"

namespace muonrt::cuda {

inline unsigned char* dynamic_shared() {
  return emulator::shared_memory(emulator::block_in_cluster());
}
/// An address counts from the beginning of the block's shared memory.
inline uint32_t shared_address(const void* memory) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(memory) - dynamic_shared());
}

constexpr size_t kLanes = 32;
inline size_t first_of_warp() { return threadIdx.x / kLanes * kLanes; }

inline void warp_sync() { emulator::meet(first_of_warp(), kLanes, nullptr, 0); }

inline void load_matrices(uint32_t (&words)[4], const void* row) {
  const auto* rows = reinterpret_cast<const void* const*>(
      emulator::meet(first_of_warp(), kLanes, &row, sizeof row));
  const size_t lane = threadIdx.x % kLanes;
  for (size_t i = 0; i < 4; ++i)
    std::memcpy(&words[i], static_cast<const char*>(rows[8 * i + lane / 4]) + lane % 4 * 4, 4);
}

}  // namespace muonrt::cuda
