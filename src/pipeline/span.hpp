#pragma once

#include <cstdint>

namespace muonrt {

enum class SpanKind : int32_t { kLocal, kProducts, kExchange, kVote };

/// A timed interval of a stage: its name, chunk and kind. SpanTimes sets the times, in nanoseconds
/// of the device's clock.
struct Span {
  const char* name = "";
  int32_t chunk = -1;
  SpanKind kind = SpanKind::kLocal;
  int64_t begin = 0, end = 0;
  bool on_comm() const { return kind == SpanKind::kExchange || kind == SpanKind::kVote; }
};

}  // namespace muonrt
