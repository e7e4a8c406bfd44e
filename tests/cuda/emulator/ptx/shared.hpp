#pragma once

#include <cstddef>
#include <cstdint>

namespace emulator::ptx {

/// Of a block whose shared memory an address names: its own, or what `mapa` made of it.
constexpr int kRankShift = 24;

/// `bytes` at an address of shared memory of the running thread's cluster. Throws std::logic_error
/// where they do not lie within what the block has, or in a block that has ended.
unsigned char* shared_bytes_at(uint64_t address, size_t bytes);

}  // namespace emulator::ptx
