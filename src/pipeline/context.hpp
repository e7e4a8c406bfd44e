#pragma once

#include <cstdint>
#include <vector>

#include "algo/newton_schulz.hpp"
#include "backend/comm.hpp"
#include "backend/device.hpp"
#include "backend/ops.hpp"
#include "pipeline/functions.hpp"
#include "plan/plan.hpp"

namespace muonrt {

class Health;

/// What every stage of every chunk works with; fixed when the optimizer is created. Tables are in
/// memory that the device reads.
struct Context {
  Device* device = nullptr;
  Comm* comm = nullptr;
  const Plan* plan = nullptr;
  Stream* compute = nullptr;
  Stream* exchange = nullptr;  // the comm stream
  StepTables tables;
  GradientTables gradient_tables;                      // the same
  const std::vector<NormuonState>* normuon = nullptr;  // by matrix; null: none has NorMuon
  // Where the host cannot write those tables, it writes them here and each step copies them.
  void* device_tables = nullptr;
  const void* host_tables = nullptr;
  int64_t table_bytes = 0;                                   // 0: nothing to copy
  const std::vector<NewtonSchulz>* newton_schulz = nullptr;  // by group
  Functions functions;                 // the caller's, for slots that they carry
  FunctionFailure* failure = nullptr;  // where those report
  Health* health = nullptr;            // null: no step measures
  bool serial = false;                 // one stage at a time, for debugging
  bool rehearses = false;              // nothing is sent, none of the caller's functions is called
  Findings* findings = nullptr;
  Ballot* ballot_sum = nullptr;  // of the vote
  int64_t world = 1;

  Ops& ops() const { return device->ops(); }
  Verdict verdict(int64_t stamp) const {
    return {.sum = ballot_sum, .world = world, .stamp = stamp};
  }
  /// Null where that matrix is not normalized here.
  const NormuonState* normuon_of(int32_t matrix) const {
    if (!normuon) return nullptr;
    const NormuonState& state = (*normuon)[static_cast<size_t>(matrix)];
    return state.lines > 0 ? &state : nullptr;
  }
  DType transport() const { return plan->problem().options.transport; }
};

/// What differs from step to step.
struct StepRun {
  int64_t stamp = 0;                 // step number and scalars, hashed; equal on every rank
  bool local_ok = true;              // false: this rank abstains, so that the step is voted down
  GradientFactors factors;           // this rank's
  const float* qk_logits = nullptr;  // this rank's, of all layers; null: none
  bool health = false;               // measure; where the context has Health
};

}  // namespace muonrt
