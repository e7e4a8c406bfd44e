#pragma once

#include <cstdint>

namespace muonrt {

enum class SpanKind : int32_t { kLocal, kProducts, kExchange, kVote };

/// A timed interval of a stage. SpanTimes sets the times, in nanoseconds of the device's clock.
struct Span {
  const char* name = "";
  int32_t chunk = -1;
  SpanKind kind = SpanKind::kLocal;
  int64_t begin = 0, end = 0;
  int64_t bytes_sent = 0, bytes_received = 0;  // for an exchange: bytes to and from other ranks
  int32_t first_owned = 0, owned = 0;          // for products: the matrices in RankChunk::owned
  bool on_comm() const { return kind == SpanKind::kExchange || kind == SpanKind::kVote; }
};

}  // namespace muonrt
