#pragma once

#include <atomic>

#include "control.hpp"

namespace cuda_test {

/// A stream of the caller's on the emulated GPU, whose work goes on until it is told to end.
class BusyStream {
 public:
  BusyStream() { cudaStreamCreateWithPriority(&handle, cudaStreamNonBlocking, 0); }
  ~BusyStream() { cudaStreamDestroy(handle); }
  BusyStream(const BusyStream&) = delete;
  BusyStream& operator=(const BusyStream&) = delete;
  void work() {
    emulator::enqueue_operation(handle, [this] { return ended.load(); });
  }

  cudaStream_t handle = nullptr;
  std::atomic<bool> ended = false;
};

}  // namespace cuda_test
