#pragma once

#include <cstdint>
#include <vector>

namespace muonrt {

/// What the driver has enqueued on the streams of one rank. Nothing has run.
enum class OpKind : int32_t {
  kProducts,   // `seconds` of matrix products
  kLocal,      // `seconds` of a pass over memory
  kRecord,     // completes event `index`
  kWait,       // waits for event `index`
  kTimestamp,  // writes the clock of the stream to `where`
  kExchange,   // exchange `index` of the rank
  kReduce      // a reduction of `bytes` over all ranks
};

struct RecordedOp {
  OpKind kind = OpKind::kLocal;
  double seconds = 0;
  /// When the host enqueues it: seconds after it has waited for event `after`; -1: after the begin
  /// of the step.
  double enqueued = 0;
  int64_t after = -1;
  int64_t index = -1;
  int64_t* where = nullptr;
  int64_t bytes = 0;  // kLocal: read and written
  double flops = 0;   // kProducts; symmetric products count half
};

struct PeerBytes {
  int32_t peer;
  int64_t bytes;
};

struct RecordedExchange {
  std::vector<PeerBytes> sends, receives;
  /// Equal on all ranks of an exchange, and ascending in the order of the exchanges. Exchanges of
  /// one chunk are its gather, its return and the second level of the return.
  int64_t key = -1;
};

struct RankRecording {
  int32_t rank = 0;
  int64_t events = 0;                         // recordings of an event; each has a separate number
  std::vector<RecordedOp> compute, exchange;  // by stream
  std::vector<RecordedExchange> exchanges;
};

}  // namespace muonrt
