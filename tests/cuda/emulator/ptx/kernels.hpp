#pragma once

#include <cstddef>
#include <functional>

#include "cuda_runtime.h"

/// If the environment variable MUONRT_EMULATED_PTX names a folder of .ptx files, runs kernels from
/// the PTX that nvcc has generated, instead of the C++ code in the emulator's build.
namespace emulator::ptx {

/// Returns whether MUONRT_EMULATED_PTX is set.
bool runs();

/// Begins a launch. Call this function when a launch begins to run on this host thread, even if the
/// launch is part of a graph.
void begin_launch();

/// Returns a function that runs a thread of a kernel.
/// @param kernel        the function in the emulator's build, whose name selects the PTX.
/// @param shared_bytes  the size that the launch sets. The function replaces it with the size of a
///     block's shared memory.
/// Throws a std::runtime_error if no PTX contains the kernel, if its arguments have a different
/// size, or if it does not allow this number of threads.
std::function<void()> prepare(const void* kernel, const Passed& passed, unsigned threads,
                              size_t& shared_bytes);

}  // namespace emulator::ptx
