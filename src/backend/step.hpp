#pragma once

#include "backend/scalars.hpp"

// What the ops of a step share.

namespace muonrt {

/// The tables that a step reads, where the device reads them.
struct StepTables {
  const ParamView* params = nullptr;    // by parameter
  const MuonScalars* groups = nullptr;  // by group
  const AdamScalars* adam = nullptr;    // by ParamView::scalars
};

/// The vote that a commit waits for: nothing is written unless it passes.
struct CommitCondition {
  const Vote* sum = nullptr;  // of all ranks, where the device reads it
  int64_t world = 0, fingerprint = 0;
  /// Where a commit notes that it wrote a value that is not finite as it is stored; null: nowhere.
  Findings* findings = nullptr;
  MUONRT_HOST_DEVICE bool passes() const { return muonrt::vote_passes(*sum, world, fingerprint); }
};

/// A message and the dtype that it has on the wire.
struct TypedBuffer {
  void* data = nullptr;
  DType dtype = DType::kF32;
};
struct ConstTypedBuffer {
  const void* data = nullptr;
  DType dtype = DType::kF32;
};

}  // namespace muonrt
