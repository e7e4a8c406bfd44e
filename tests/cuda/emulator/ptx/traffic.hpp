#pragma once

#include <cstddef>
#include <cstdint>

#include "ptx/program.hpp"

// What kernels ask of memory, warp by warp: sectors of 32 bytes of device memory, wavefronts of
// shared memory. Counted where MUONRT_EMULATED_TRAFFIC names a file, in which the sums of all
// kernels stand as JSON when the program ends.
// Source: CUDA Programming Guide 13.0, sections on device memory accesses and shared memory banks.

namespace emulator::ptx::traffic {

enum class Kind { kLoad, kStore, kShared };

/// Whether it is counted.
bool counts();

/// The thread's instruction, its last one, reaches `bytes` at an address (in shared memory, an
/// offset). At the end of a warp's last such lane its request is complete.
void note(const Thread& t, Kind kind, uint64_t address, size_t bytes);

void note_launch(const Function& f);
/// A thread has ended after so many instructions.
void note_end(const Function& f, uint64_t instructions);

}  // namespace emulator::ptx::traffic
