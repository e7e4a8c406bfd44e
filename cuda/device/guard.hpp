#pragma once

#include <optional>

#include "cuda/device/check.hpp"
#include "cuda/device/primary_context.hpp"

namespace muonrt::cuda {

/// Makes a device the calling thread's current one, in its primary context, and what was current
/// before again at the end. Not by cudaSetDevice: to give a thread back the device that it has
/// never used (0, at first) would make a context there, which takes hundreds of megabytes.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    int former = 0;
    MUONRT_CUDA(cudaGetDevice(&former));
    if (former == device && in_primary_context(device)) return;
    push_context(device);
    pushed_ = true;
  }
  ~DeviceGuard() {
    if (pushed_) pop_context();
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  bool pushed_ = false;
};

/// The same for ways out that cannot fail: where the device cannot be had any more, the thread
/// keeps its own.
class QuietDeviceGuard {
 public:
  explicit QuietDeviceGuard(int device) noexcept {
    try {
      guard_.emplace(device);
    } catch (...) {
    }
  }

 private:
  std::optional<DeviceGuard> guard_;
};

/// While one lives, the calling thread may allocate and look at events though the program captures
/// a stream of its own: by default that forbids both, and the attempt would spoil the capture.
class RelaxedCapture {
 public:
  RelaxedCapture() { MUONRT_CUDA(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;  // then the former one
};

}  // namespace muonrt::cuda
