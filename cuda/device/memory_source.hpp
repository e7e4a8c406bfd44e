#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/allocator.hpp"
#include "cuda/device/stream_list.hpp"

namespace muonrt::cuda {

/// Allocates and frees a GPU's memory with cudaMalloc and cudaFree, or with the caller's functions.
/// The caller's functions receive a stream that muonrt uses for nothing else.
class MemorySource {
 public:
  /// @param caller  the caller's functions; if it has none, cudaMalloc is used.
  /// @param streams  all streams that use the memory.
  MemorySource(int device, const Allocator& caller, const StreamList& streams);
  ~MemorySource();
  MemorySource(const MemorySource&) = delete;
  MemorySource& operator=(const MemorySource&) = delete;

  /// Returns memory that every stream may use immediately. Errors: OUT_OF_MEMORY; INVALID_ARGUMENT
  /// if the caller's function returns memory of another device.
  void* allocate(int64_t bytes);
  /// Frees memory after the work that may use it has ended. cudaFree waits for the whole GPU.
  /// Before it calls the caller's function, `release` itself waits for `streams`.
  void release(void* memory, int64_t bytes);

 private:
  void require_own(const void* memory, int64_t bytes) const;

  const int device_;
  const Allocator caller_;
  const StreamList& streams_;
  cudaStream_t order_ = nullptr;  // passed to the caller's functions; null if cudaMalloc is used
};

}  // namespace muonrt::cuda
