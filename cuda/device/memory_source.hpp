#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "backend/allocator.hpp"
#include "cuda/device/stream_list.hpp"

namespace muonrt::cuda {

/// Where a GPU's memory comes from: cudaMalloc, a pool of its own, or the caller's functions. The
/// last two work in the order of a stream that nothing else runs on.
class MemorySource {
 public:
  /// @param caller   no functions: a pool if `stream_ordered`, else cudaMalloc.
  /// @param streams  all that use the memory.
  /// Errors: NOT_SUPPORTED if the GPU has no pools.
  MemorySource(int device, const Allocator& caller, bool stream_ordered, const StreamList& streams);
  ~MemorySource();
  MemorySource(const MemorySource&) = delete;
  MemorySource& operator=(const MemorySource&) = delete;

  /// Memory that every stream may use at once. Errors: OUT_OF_MEMORY; INVALID_ARGUMENT if the
  /// caller gives what is not this GPU's.
  void* take(int64_t bytes);
  /// Waits until nothing uses it: cudaFree for the whole GPU, the others for `streams`.
  void give(void* memory, int64_t bytes);

 private:
  void make_pool();
  void end();
  void require_own(const void* memory, int64_t bytes) const;
  void give_in_order(void* memory, int64_t bytes);

  const int device_;
  const Allocator caller_;
  const StreamList& streams_;
  cudaMemPool_t pool_ = nullptr;
  cudaStream_t order_ = nullptr;  // of what is taken and given back; null with cudaMalloc
};

}  // namespace muonrt::cuda
