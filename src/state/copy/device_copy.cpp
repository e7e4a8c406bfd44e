#include "state/copy/device_copy.hpp"

#include <algorithm>
#include <cstring>

#include "backend/ops.hpp"

namespace muonrt {

namespace {
constexpr int64_t kStaging = 1 << 20;
}

DeviceCopy::DeviceCopy(Device& device, int64_t timeout_ms) : device_(&device) {
  if (device.host_reaches_memory()) return;
  staging_ = Buffer::shared(device, kStaging);
  stream_.emplace(device);
  stream_->join_callers("state", timeout_ms);
}

void DeviceCopy::run(void* to, const void* from, int64_t bytes) {
  stream_->run([&](Stream& stream) { device_->ops().copy(stream, to, from, bytes); });
}

void DeviceCopy::read(void* to, const void* from, int64_t bytes) {
  if (!staging_.data()) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  for (int64_t done = 0; done < bytes; done += kStaging) {
    const int64_t count = std::min(kStaging, bytes - done);
    run(staging_.data(), static_cast<const char*>(from) + done, count);
    std::memcpy(static_cast<char*>(to) + done, staging_.data(), static_cast<size_t>(count));
  }
}

void DeviceCopy::write(void* to, const void* from, int64_t bytes) {
  if (!staging_.data()) {
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return;
  }
  for (int64_t done = 0; done < bytes; done += kStaging) {
    const int64_t count = std::min(kStaging, bytes - done);
    std::memcpy(staging_.data(), static_cast<const char*>(from) + done, static_cast<size_t>(count));
    run(static_cast<char*>(to) + done, staging_.data(), count);
  }
}

}  // namespace muonrt
