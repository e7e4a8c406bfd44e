#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator::ptx {

/// Of a block whose shared memory an address names: its own, or what `mapa` made of it.
constexpr int kRankShift = 24;

struct SharedRange {
  unsigned block = 0;  // in the cluster
  size_t offset = 0;
  unsigned char* memory = nullptr;
};
/// `bytes` at an address of shared memory of the running thread's cluster. Throws std::logic_error
/// where they do not lie within what the block has, in a block that has ended, or unaligned.
SharedRange shared_range(uint64_t address, size_t bytes);

}  // namespace emulator::ptx
