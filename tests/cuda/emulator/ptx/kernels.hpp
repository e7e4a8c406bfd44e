#pragma once

#include <cstddef>
#include <functional>

#include "cuda_runtime.h"

/// Kernels as nvcc has compiled them, instead of the emulator's build. If MUONRT_EMULATED_PTX names
/// a folder of .ptx files, launches run their code.
namespace emulator::ptx {

/// Whether the environment variable is set.
bool runs();

/// Call it when a launch begins to run on this host thread, also one of a graph.
void begin_launch();

/// Runs a thread of a kernel.
/// @param kernel  the function of the emulator's build; its PTX is found by its name.
/// @param shared_bytes  the size that the launch sets; receives the size of a block's shared
///     memory.
/// Throws std::runtime_error if no PTX has the kernel, or has it with arguments of this size and
/// this many threads.
std::function<void()> prepare(const void* kernel, const Passed& passed, unsigned threads,
                              size_t& shared_bytes);

}  // namespace emulator::ptx
