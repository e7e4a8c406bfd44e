#pragma once

#include <cstddef>
#include <functional>

#include "cuda_runtime.h"

/// Runs kernels as nvcc has compiled them, instead of those in the emulator's build. If
/// MUONRT_EMULATED_PTX names a folder of .ptx files, launches run their code.
namespace emulator::ptx {

/// Returns whether the environment variable is set.
bool runs();

/// Begins a launch. Call it when a launch, also one of a graph, begins to run on this host thread.
void begin_launch();

/// Returns a function that runs a thread of a kernel.
/// @param kernel  The function of the emulator's build, by whose name the PTX is found.
/// @param shared_bytes  The size that the launch sets. Receives the size of a block's shared
///     memory.
/// Throws std::runtime_error if no PTX has the kernel, or its arguments have another size, or it
/// does not allow this many threads.
std::function<void()> prepare(const void* kernel, const Passed& passed, unsigned threads,
                              size_t& shared_bytes);

}  // namespace emulator::ptx
