#pragma once

#include <functional>

#include "cuda_runtime.h"

namespace emulator {

/// Runs one block: `thread` once for each of its threads, which take turns and meet in
/// __syncthreads and in shuffles. Throws std::logic_error where they cannot all meet.
void run_block(const std::function<void()>& thread, uint3 block, dim3 grid, dim3 threads);

}  // namespace emulator
