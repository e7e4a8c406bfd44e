#pragma once

#include <cstdint>

namespace muonrt::cuda {

/// Begins an NVTX range of the calling thread in the domain "muonrt", for Nsight Systems. Does
/// nothing if muonrt was built without NVTX's headers, and costs almost nothing if no profiler is
/// attached.
void push_range(const char* name, int64_t number) noexcept;
/// Ends the range that the calling thread has begun last.
void pop_range() noexcept;

}  // namespace muonrt::cuda
