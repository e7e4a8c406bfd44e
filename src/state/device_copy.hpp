#pragma once

#include <cstdint>
#include <optional>

#include "backend/local_stream.hpp"

namespace muonrt {

/// Copies between a device's memory and the host's, one after the other, while no step runs.
class DeviceCopy {
 public:
  /// Of the host's own memory.
  DeviceCopy() = default;
  /// @param timeout_ms  how long to wait for what the caller has enqueued on the default stream.
  /// Errors: those of LocalStream::join_callers.
  DeviceCopy(Device& device, int64_t timeout_ms);

  /// Errors: those of the device.
  void read(void* to, const void* from, int64_t bytes);
  void write(void* to, const void* from, int64_t bytes);

 private:
  void run(void* to, const void* from, int64_t bytes);

  Device* device_ = nullptr;
  // Where the host does not reach the device's memory:
  Buffer staging_;
  std::optional<LocalStream> stream_;
};

}  // namespace muonrt
