#pragma once

#include <cstdint>
#include <optional>

#include "backend/local_stream.hpp"

namespace muonrt {

/// Copies between device and host memory, one after the other, while no step runs.
class DeviceCopy {
 public:
  /// Copies within host memory.
  DeviceCopy() = default;
  /// @param timeout_ms  limit of the wait for the caller's work on the default stream.
  /// Errors: those of LocalStream::join_callers.
  DeviceCopy(Device& device, int64_t timeout_ms);

  /// Errors: those of the device.
  void read(void* to, const void* from, int64_t bytes);
  void write(void* to, const void* from, int64_t bytes);

 private:
  void run(void* to, const void* from, int64_t bytes);

  Device* device_ = nullptr;
  // Used if the host cannot access the device's memory:
  Buffer staging_;
  std::optional<LocalStream> stream_;
};

}  // namespace muonrt
