#pragma once

#include "cuda/check.hpp"

namespace muonrt::cuda {

/// Makes a device the calling thread's current one, and the former one again at the end.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) : device_(device) {
    MUONRT_CUDA(cudaGetDevice(&former_));
    if (former_ != device_) MUONRT_CUDA(cudaSetDevice(device_));
  }
  ~DeviceGuard() {
    if (former_ != device_) cudaSetDevice(former_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int device_;
  int former_ = 0;
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
