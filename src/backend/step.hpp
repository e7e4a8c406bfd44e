#pragma once

#include "backend/scalars.hpp"

namespace muonrt {

/// The tables that the ops of a step read. They are in memory that the device can read.
struct StepTables {
  const ParamView* params = nullptr;    // indexed by parameter
  const MuonScalars* groups = nullptr;  // indexed by group
  const AdamScalars* adam = nullptr;    // indexed by ParamView::scalars
};

/// The vote sum that a commit waits for, and the values that it must have. A commit writes only if
/// `passes` returns true.
struct CommitCondition {
  const Vote* sum = nullptr;  // sum over all ranks, in memory that the device can read
  int64_t world = 0, fingerprint = 0;
  /// Where a commit records that it has written a value that is non-finite in its stored dtype. May
  /// be null.
  Findings* findings = nullptr;
  MUONRT_HOST_DEVICE bool passes() const { return muonrt::vote_passes(*sum, world, fingerprint); }
};

/// A message buffer and the dtype of its elements.
struct TypedBuffer {
  void* data = nullptr;
  DType dtype = DType::kF32;
};
struct ConstTypedBuffer {
  const void* data = nullptr;
  DType dtype = DType::kF32;
};

}  // namespace muonrt
