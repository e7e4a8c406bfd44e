#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "backend/device.hpp"
#include "pipeline/span.hpp"

namespace muonrt {

/// The times at which spans begin and end. The device writes them, and the host reads them after
/// the step. If a span has not run, its times are 0.
class SpanTimes {
 public:
  SpanTimes() = default;
  SpanTimes(Device& device, size_t spans)
      : device_(&device),
        memory_(Buffer::shared(device, static_cast<int64_t>(2 * spans * sizeof(int64_t)))) {
    clear();
  }
  /// Sets all times to 0. Must not be called while a span is running.
  void clear() {
    if (memory_.data()) std::memset(memory_.data(), 0, static_cast<size_t>(memory_.bytes()));
  }

  void begin(int32_t span, Stream& stream) const {
    device_->timestamp(stream, memory_.as<int64_t>() + 2 * span);
  }
  void end(int32_t span, Stream& stream) const {
    device_->timestamp(stream, memory_.as<int64_t>() + 2 * span + 1);
  }

  /// Returns the two times of a span, in memory that host and device can access.
  int64_t* values_of(int32_t span) const { return memory_.as<int64_t>() + 2 * span; }
  /// Sets the times of each span in `spans` and calls `visit(span)` for it.
  template <class Visit>
  void visit(const std::vector<Span>& spans, const Visit& visit) const {
    for (size_t i = 0; i < spans.size(); ++i) {
      Span span = spans[i];
      span.begin = memory_.as<int64_t>()[2 * i];
      span.end = memory_.as<int64_t>()[2 * i + 1];
      visit(span);
    }
  }

 private:
  Device* device_ = nullptr;
  Buffer memory_;
};

}  // namespace muonrt
