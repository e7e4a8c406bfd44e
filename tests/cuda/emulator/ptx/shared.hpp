#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator::ptx {

/// This bit and the higher bits select the block that an address in shared memory belongs to: the
/// thread's own block, or a block that `mapa` has selected.
constexpr int kRankShift = 24;

struct SharedRange {
  unsigned block = 0;  // index in the cluster
  size_t offset = 0;
  unsigned char* memory = nullptr;
};
/// Returns `bytes` bytes at an address in the shared memory of the running thread's cluster. Throws
/// std::logic_error if the bytes are outside the block's shared memory, if the block has ended, or
/// if the address is not aligned.
SharedRange shared_range(uint64_t address, size_t bytes);

}  // namespace emulator::ptx
