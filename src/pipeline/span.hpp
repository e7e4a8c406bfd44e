#pragma once

#include <cstdint>

namespace muonrt {

enum class SpanKind : int32_t { kLocal, kProducts, kExchange, kVote };

/// One timed piece of a stage: what ran, where, and when by the device's clock (nanoseconds).
/// The times come from SpanTimes.
struct Span {
  const char* name = "";
  int32_t chunk = -1;
  SpanKind kind = SpanKind::kLocal;
  int64_t begin = 0, end = 0;
  bool on_comm() const { return kind == SpanKind::kExchange || kind == SpanKind::kVote; }
};

}  // namespace muonrt
