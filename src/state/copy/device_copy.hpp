#pragma once

#include <cstdint>
#include <optional>

#include "backend/local_stream.hpp"

namespace muonrt {

/// Copies data between device and host memory. Each call waits until its copy is complete. Use it
/// only while no step is running.
class DeviceCopy {
 public:
  /// Creates an object that copies within host memory.
  DeviceCopy() = default;
  /// @param timeout_ms  Maximum time to wait for the caller's work on the default stream.
  /// Errors: any error of LocalStream::join_callers().
  DeviceCopy(Device& device, int64_t timeout_ms);

  /// Both functions copy `bytes` bytes: read() copies from the device, and write() copies to the
  /// device. Errors: any error of the device.
  void read(void* to, const void* from, int64_t bytes);
  void write(void* to, const void* from, int64_t bytes);

 private:
  void run(void* to, const void* from, int64_t bytes);

  Device* device_ = nullptr;
  // Used only if the host cannot access the device's memory.
  Buffer staging_;
  std::optional<LocalStream> stream_;
};

}  // namespace muonrt
