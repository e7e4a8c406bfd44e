#pragma once

#include <cstdint>
#include <vector>

#include "backend/device.hpp"
#include "pipeline/span.hpp"

namespace muonrt {

/// When spans began and ended: a pair of times for each, in memory that the device writes and the
/// host reads after the step. Those of a span that has not run are 0.
class SpanTimes {
 public:
  SpanTimes() = default;
  SpanTimes(Device& device, size_t spans)
      : device_(&device),
        memory_(Buffer::shared(device, static_cast<int64_t>(2 * spans * sizeof(int64_t)))) {
    std::fill_n(memory_.as<int64_t>(), 2 * spans, int64_t{0});
  }

  void begin(int32_t span, Stream& stream) {
    device_->timestamp(stream, memory_.as<int64_t>() + 2 * span);
  }
  void end(int32_t span, Stream& stream) {
    device_->timestamp(stream, memory_.as<int64_t>() + 2 * span + 1);
  }

  std::vector<Span> read(std::vector<Span> spans) const {
    for (size_t i = 0; i < spans.size(); ++i) {
      spans[i].begin = memory_.as<int64_t>()[2 * i];
      spans[i].end = memory_.as<int64_t>()[2 * i + 1];
    }
    return spans;
  }

 private:
  Device* device_ = nullptr;
  Buffer memory_;
};

}  // namespace muonrt
