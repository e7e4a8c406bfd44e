#pragma once

#include <cstdint>
#include <memory>

#include "backend/device.hpp"

namespace muonrt {

/// Copies between a device's memory and the host's, one after the other, while no step runs.
class DeviceCopy {
 public:
  /// Of the host's own memory.
  DeviceCopy() = default;
  DeviceCopy(Device& device, int64_t timeout_ms);

  /// Errors: those of the device.
  void read(void* to, const void* from, int64_t bytes);
  void write(void* to, const void* from, int64_t bytes);

 private:
  void run(void* to, const void* from, int64_t bytes);

  Device* device_ = nullptr;
  int64_t timeout_ms_ = 0;
  // Where the host does not reach the device's memory:
  Buffer staging_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> done_;
};

}  // namespace muonrt
