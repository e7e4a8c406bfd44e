#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "block.hpp"

namespace muonrt::cuda {

inline unsigned char* dynamic_shared() {
  return emulator::shared_memory(emulator::block_in_cluster());
}
/// Returns the offset of `memory` in the block's shared memory. The emulator uses this offset as
/// the address.
inline uint32_t shared_address(const void* memory) {
  return static_cast<uint32_t>(static_cast<const unsigned char*>(memory) - dynamic_shared());
}
inline int not_hoisted(int value) { return value; }

/// The 16-byte rows of a block's shared memory that its threads have accessed with the instructions
/// below, without a fence for bulk copies after the access.
class Unfenced {
 public:
  void touch(size_t thread, uint32_t row) {
    rows_.at(thread).push_back(row);
    ++count_;
  }
  void fence(size_t thread) {
    count_ -= rows_.at(thread).size();
    rows_[thread].clear();
  }
  void clear() {
    for (size_t thread = 0; count_ > 0 && thread < rows_.size(); ++thread) fence(thread);
  }
  /// Throws std::logic_error if no fence followed an access to one of these bytes.
  void require_none(uint32_t from, uint32_t bytes) const {
    for (size_t t = 0; count_ > 0 && t < rows_.size(); ++t)
      for (const uint32_t row : rows_[t])
        if (row >= from && row - from < bytes)
          throw std::logic_error("a bulk copy without a fence before it");
  }

 private:
  std::array<std::vector<uint32_t>, 512> rows_;
  size_t count_ = 0;
};
inline Unfenced& unfenced(unsigned block) {
  static thread_local std::vector<Unfenced> of_block(16);
  static thread_local uint64_t cluster = 0;
  if (cluster != emulator::cluster_number()) {  // the entries belong to another cluster
    for (Unfenced& rows : of_block) rows.clear();
    cluster = emulator::cluster_number();
  }
  return of_block.at(block);
}
inline void touch_shared(const void* row) {
  unfenced(emulator::block_in_cluster()).touch(threadIdx.x, shared_address(row));
}

constexpr size_t kLanes = 32;
inline size_t first_of_warp() { return threadIdx.x / kLanes * kLanes; }

inline void warp_sync() { emulator::allgather(first_of_warp(), kLanes, nullptr, 0); }

inline void ldmatrix(uint32_t (&words)[4], const void* row) {
  const auto* rows = reinterpret_cast<const void* const*>(
      emulator::allgather(first_of_warp(), kLanes, &row, sizeof row));
  const size_t lane = threadIdx.x % kLanes;
  for (size_t i = 0; i < 4; ++i)
    std::memcpy(&words[i], static_cast<const char*>(rows[8 * i + lane / 4]) + lane % 4 * 4, 4);
  touch_shared(row);
}

}  // namespace muonrt::cuda
