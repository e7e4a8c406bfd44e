#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator::ptx {

/// The bits above this one select the block to which a shared-memory address belongs: the thread's
/// own, or one from `mapa`.
constexpr int kRankShift = 24;

struct SharedRange {
  unsigned block = 0;  // index in the cluster
  size_t offset = 0;
  unsigned char* memory = nullptr;
};
/// Returns `bytes` at a shared-memory address of the running thread's cluster. Throws
/// std::logic_error if they are outside the block's shared memory, in a block that has ended, or
/// not aligned.
SharedRange shared_range(uint64_t address, size_t bytes);

}  // namespace emulator::ptx
