#pragma once

#include "backend/scalars.hpp"

namespace muonrt {

/// The tables that a step reads, in memory that the device reads.
struct StepTables {
  const ParamView* params = nullptr;    // by parameter
  const MuonScalars* groups = nullptr;  // by group
  const AdamScalars* adam = nullptr;    // by ParamView::scalars
};

/// The vote sum that a commit waits for, and what it must equal. A commit writes only if `passes`.
struct CommitCondition {
  const Vote* sum = nullptr;  // of all ranks, in memory that the device reads
  int64_t world = 0, fingerprint = 0;
  /// A commit notes here that it wrote a value that is not finite as stored. May be null.
  Findings* findings = nullptr;
  MUONRT_HOST_DEVICE bool passes() const { return muonrt::vote_passes(*sum, world, fingerprint); }
};

/// A message and the dtype of its elements.
struct TypedBuffer {
  void* data = nullptr;
  DType dtype = DType::kF32;
};
struct ConstTypedBuffer {
  const void* data = nullptr;
  DType dtype = DType::kF32;
};

}  // namespace muonrt
