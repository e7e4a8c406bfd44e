#pragma once

#include <cstdint>
#include <vector>

namespace muonrt {

/// The kinds of operations that the driver enqueues on the streams of a rank. The operations are
/// only recorded.
enum class OpKind : int32_t {
  kProducts,   // matrix products that take `seconds`
  kLocal,      // a pass over memory that takes `seconds`
  kRecord,     // completes event `index`
  kWait,       // waits for event `index`
  kTimestamp,  // writes the stream's time to `where`
  kExchange,   // exchange `index` of the rank
  kReduce      // a reduction of `bytes` over all ranks
};

struct RecordedOp {
  OpKind kind = OpKind::kLocal;
  double seconds = 0;
  /// Time at which the host enqueues the operation, in seconds since it waited for event `after`.
  /// If `after` is -1, the time counts from the start of the step.
  double enqueued = 0;
  int64_t after = -1;
  int64_t index = -1;
  int64_t* where = nullptr;
  int64_t bytes = 0;  // for kLocal: bytes read and written
  double flops = 0;   // for kProducts; symmetric products count half
};

struct PeerBytes {
  int32_t peer;
  int64_t bytes;
};

struct RecordedExchange {
  std::vector<PeerBytes> sends, receives;
  /// Identifies the exchange on all of its ranks. Keys ascend in the order of the exchanges. The
  /// exchanges of a chunk are its gather, its return and the second level of the return.
  int64_t key = -1;
};

struct RankRecording {
  int32_t rank = 0;
  int64_t events = 0;                         // number of kRecord operations
  std::vector<RecordedOp> compute, exchange;  // one list for each stream
  std::vector<RecordedExchange> exchanges;
};

}  // namespace muonrt
