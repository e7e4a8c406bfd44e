#pragma once

#include <cstdint>

namespace muonrt::cuda {

/// NVTX ranges of the calling thread in the domain "muonrt", seen by Nsight Systems; nothing where
/// the headers are not, next to nothing where no profiler listens.
void push_range(const char* name, int64_t number) noexcept;
void pop_range() noexcept;

}  // namespace muonrt::cuda
