#pragma once

#include <optional>

#include "cuda/device/check.hpp"
#include "cuda/device/primary_context.hpp"

namespace muonrt::cuda {

/// Makes a device current for the calling thread, in the device's primary context. The destructor
/// restores the previous context. DeviceGuard does not use cudaSetDevice, because restoring a
/// device that the thread has never used (initially device 0) would create a context there. A
/// context takes hundreds of megabytes.
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

/// Like DeviceGuard, but for destructors and other code that cannot fail. If the device cannot be
/// made current, the thread keeps its current device.
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

/// Lets the calling thread allocate memory and query events while the program captures a stream. By
/// default a capture forbids both calls, and a forbidden call invalidates the capture.
class RelaxedCapture {
 public:
  RelaxedCapture() { MUONRT_CUDA(cudaThreadExchangeStreamCaptureMode(&mode_)); }
  ~RelaxedCapture() { cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  // After the constructor, this is the previous mode, which the destructor restores.
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

}  // namespace muonrt::cuda
