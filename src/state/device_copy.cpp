#include "state/device_copy.hpp"

#include <algorithm>
#include <cstring>

#include "backend/ops.hpp"

namespace muonrt {

namespace {
constexpr int64_t kStaging = 1 << 20;
}

DeviceCopy::DeviceCopy(Device& device, int64_t timeout_ms)
    : device_(&device), timeout_ms_(timeout_ms) {
  if (device.host_reaches_memory()) return;
  staging_ = Buffer::shared(device, kStaging);
  stream_ = device.create_stream(StreamKind::kCompute);
  done_ = device.create_event();
  device.join(*stream_, nullptr, "state");
}

void DeviceCopy::run(void* to, const void* from, int64_t bytes) {
  device_->ops().copy(*stream_, to, from, bytes);
  device_->record(*done_, *stream_);
  device_->synchronize(*done_, Deadline::in_ms(timeout_ms_));
  if (const auto error = device_->error()) throw *error;
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
