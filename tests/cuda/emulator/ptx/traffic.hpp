#pragma once

#include <cstddef>
#include <cstdint>

#include "ptx/program.hpp"

// Counts the memory traffic of kernels warp by warp: sectors of 32 bytes of device memory, and
// wavefronts of shared memory. Traffic is counted if MUONRT_EMULATED_TRAFFIC names a file. When the
// program exits, it writes the sums for all kernels to this file as JSON. Source: CUDA Programming
// Guide 13.0, sections on device memory accesses and shared memory banks.

namespace emulator::ptx::traffic {

enum class Kind { kLoad, kStore, kShared };

/// Returns whether traffic is counted.
bool counts();

/// Records that the thread's last instruction accesses `bytes` bytes at an address, or at an offset
/// in shared memory. The request is complete when the last lane of the warp has recorded its
/// access.
void note(const Thread& t, Kind kind, uint64_t address, size_t bytes);

void note_launch(const Function& f);
/// Records that a thread has ended after it has executed this number of instructions.
void note_end(const Function& f, uint64_t instructions);

}  // namespace emulator::ptx::traffic
