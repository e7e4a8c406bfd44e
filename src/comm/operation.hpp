#pragma once

#include <cstdint>

namespace muonrt {

/// The kinds of operations of a transport.
enum class OperationKind : int32_t { kExchange, kAllgather, kReduceMax, kReduceSum, kDuplicate };
constexpr int kOperationKinds = 5;

constexpr const char* name_of(OperationKind kind) {
  switch (kind) {
    case OperationKind::kExchange:
      return "exchange";
    case OperationKind::kAllgather:
      return "allgather";
    case OperationKind::kReduceMax:
      return "reduce_max";
    case OperationKind::kReduceSum:
      return "reduce_sum";
    case OperationKind::kDuplicate:
      return "duplicate";
  }
  return "unknown";
}

/// One operation of one rank on one transport. Both numbers start at 0.
struct Operation {
  OperationKind kind = OperationKind::kExchange;
  int64_t sequence = 0;  // number among all operations of the rank
  int64_t ordinal = 0;   // number among the operations of the same kind
};

}  // namespace muonrt
