#pragma once

#include <cstdint>

namespace muonrt {

enum class Work : int32_t { kLocal, kProducts, kExchange, kVote };

/// One timed piece of a stage: what ran, where, and when by the device's clock (nanoseconds).
/// The times come from SpanTimes.
struct Span {
  const char* name = "";
  int32_t slot = -1;
  Work work = Work::kLocal;
  int64_t begin = 0, end = 0;
  bool on_comm() const { return work == Work::kExchange || work == Work::kVote; }
};

}  // namespace muonrt
