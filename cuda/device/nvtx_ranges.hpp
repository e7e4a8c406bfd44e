#pragma once

#include <cstdint>

namespace muonrt::cuda {

/// Begin and end NVTX ranges of the calling thread in the domain "muonrt", for Nsight Systems.
/// These functions do nothing if muonrt was built without NVTX's headers, and cost almost nothing
/// if no profiler is attached.
void push_range(const char* name, int64_t number) noexcept;
void pop_range() noexcept;

}  // namespace muonrt::cuda
