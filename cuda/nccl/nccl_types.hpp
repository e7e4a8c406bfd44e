#pragma once

#include <climits>
#include <cstddef>

namespace muonrt::cuda {

// The part of NCCL's binary interface that muonrt uses, as in NCCL 2.19 to 2.32. With these
// declarations, the build does not need NCCL. If nccl.h exists,
// tests/cuda/nccl/nccl_header_test.cpp compares it with this file.

using NcclHandle = struct NcclOpaque*;  // ncclComm_t

struct NcclUniqueId {
  char internal[128];
};

enum NcclResult : int {
  kNcclSuccess = 0,
  kNcclUnhandledCudaError = 1,
  kNcclSystemError = 2,
  kNcclInternalError = 3,
  kNcclInvalidArgument = 4,
  kNcclInvalidUsage = 5,
  kNcclRemoteError = 6,
  kNcclInProgress = 7,
};
enum NcclType : int { kNcclInt8 = 0, kNcclInt32 = 2, kNcclInt64 = 4 };
enum NcclOp : int { kNcclSum = 0, kNcclMax = 2 };

/// ncclConfig_t of NCCL 2.28. An older NCCL reads only the fields that it knows, and a newer NCCL
/// uses defaults for the missing fields.
struct NcclConfig {
  static constexpr int kUndefined = INT_MIN;
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 22800;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_ctas = kUndefined;
  int max_ctas = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
  int traffic_class = kUndefined;
  const char* comm_name = nullptr;
  int collnet_enable = kUndefined;
  int cta_policy = kUndefined;
  int shrink_share = kUndefined;
  int nvls_ctas = kUndefined;
  int channels_per_net_peer = kUndefined;
  int nvlink_centric_sched = kUndefined;
};

}  // namespace muonrt::cuda
