#pragma once

#include <cstdint>

namespace muonrt::cuda {

/// NVTX ranges of the calling thread, seen by Nsight Systems; nothing where the headers are not.
void push_range(const char* name, int64_t number) noexcept;
void pop_range() noexcept;

}  // namespace muonrt::cuda
