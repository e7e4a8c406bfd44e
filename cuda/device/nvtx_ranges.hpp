#pragma once

#include <cstdint>

namespace muonrt::cuda {

/// Add NVTX ranges of the calling thread to the domain "muonrt", for Nsight Systems. These
/// functions do nothing if muonrt was built without NVTX's headers, and cost almost nothing if no
/// profiler is attached.
void push_range(const char* name, int64_t number) noexcept;
void pop_range() noexcept;

}  // namespace muonrt::cuda
