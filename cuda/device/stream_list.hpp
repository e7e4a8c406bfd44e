#pragma once

#include <cuda_runtime_api.h>

#include <mutex>
#include <set>

namespace muonrt::cuda {

/// The existing streams of a device. Threads: any.
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
  /// Blocks until the work of these streams has run. Does not wait for the whole device, because
  /// this would invalidate the program's captures. The device must be current. Errors: DEVICE.
  void finish() const;

 private:
  mutable std::mutex mutex_;
  std::set<cudaStream_t> streams_;
};

}  // namespace muonrt::cuda
