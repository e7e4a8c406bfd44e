#pragma once

#include <cstdint>

#include "base/error.hpp"
#include "cuda/device/guard.hpp"

namespace muonrt::cuda {

/// Allocates, holds and frees memory that belongs to no Device: pinned host memory, or memory of a
/// GPU.
class RawMemory {
 public:
  RawMemory() = default;
  RawMemory(int device, int64_t bytes, bool pinned) : device_(device), pinned_(pinned) {
    const DeviceGuard guard(device_);
    const RelaxedCapture relaxed;
    const auto size = static_cast<size_t>(bytes);
    if (pinned_) {
      MUONRT_CUDA(cudaHostAlloc(&data_, size, cudaHostAllocPortable | cudaHostAllocMapped));
    } else {
      MUONRT_CUDA(cudaMalloc(&data_, size));
    }
    bytes_ = bytes;
  }
  ~RawMemory() {
    if (!data_) return;
    try {
      const DeviceGuard guard(device_);
      const RelaxedCapture relaxed;
      pinned_ ? cudaFreeHost(data_) : cudaFree(data_);
    } catch (const Error&) {  // the memory was freed with the context
    }
  }
  RawMemory(const RawMemory&) = delete;
  RawMemory& operator=(const RawMemory&) = delete;

  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  int device_ = 0;
  bool pinned_ = false;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace muonrt::cuda
