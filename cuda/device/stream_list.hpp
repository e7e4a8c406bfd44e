#pragma once

#include <cuda_runtime_api.h>

#include <mutex>
#include <set>

namespace muonrt::cuda {

/// A device's streams that are alive. Threads: any.
class StreamList {
 public:
  void add(cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    streams_.insert(stream);
  }
  void remove(cudaStream_t stream) {
    const std::lock_guard lock(mutex_);
    streams_.erase(stream);
  }
  /// Blocks until what they were given has run. They alone: to wait for the whole device spoils
  /// every capture of the program's. The device must be current. Errors: DEVICE.
  void finish() const;

 private:
  mutable std::mutex mutex_;
  std::set<cudaStream_t> streams_;
};

}  // namespace muonrt::cuda
