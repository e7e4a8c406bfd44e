#pragma once

#include <cstddef>
#include <functional>

#include "cuda_runtime.h"

/// Kernels as the CUDA compiler has compiled them, in place of the emulator's own: where
/// MUONRT_EMULATED_PTX names a folder of .ptx files, launches run what stands there.
namespace emulator::ptx {

/// Whether the environment asks for it.
bool runs();

/// A launch begins to run on this processor, again if it is a graph's.
void begin_launch();

/// A thread of a kernel.
/// @param kernel        the function of the emulator's own build; its PTX is found by its name.
/// @param shared_bytes  what the launch asks for; what a block has in all, afterwards.
/// Throws std::runtime_error where no PTX has the kernel, takes an argument of this size or allows
/// so many threads.
std::function<void()> prepare(const void* kernel, const Passed& passed, unsigned threads,
                              size_t& shared_bytes);

}  // namespace emulator::ptx
