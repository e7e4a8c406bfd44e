#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/allocator.hpp"
#include "cuda/device/stream_list.hpp"

namespace muonrt::cuda {

/// Where a GPU's memory comes from: cudaMalloc, or the caller's functions, which get a stream that
/// nothing else runs on.
class MemorySource {
 public:
  /// @param caller   no functions: cudaMalloc.
  /// @param streams  all that use the memory.
  MemorySource(int device, const Allocator& caller, const StreamList& streams);
  ~MemorySource();
  MemorySource(const MemorySource&) = delete;
  MemorySource& operator=(const MemorySource&) = delete;

  /// Memory that every stream may use at once. Errors: OUT_OF_MEMORY; INVALID_ARGUMENT if the
  /// caller gives what is not this GPU's.
  void* allocate(int64_t bytes);
  /// Waits until nothing uses it: cudaFree for the whole GPU, the caller's for `streams`.
  void release(void* memory, int64_t bytes);

 private:
  void require_own(const void* memory, int64_t bytes) const;

  const int device_;
  const Allocator caller_;
  const StreamList& streams_;
  cudaStream_t order_ = nullptr;  // of what is taken and given back; null with cudaMalloc
};

}  // namespace muonrt::cuda
