#pragma once

#include <cstdint>

#include "backend/comm.hpp"
#include "backend/device.hpp"
#include "backend/ops.hpp"
#include "backend/scalars.hpp"
#include "backend/step.hpp"
#include "plan/plan.hpp"

namespace muonrt {

/// The results of the stages in device memory.
struct DeviceResults {
  Findings* findings = nullptr;  // findings of this rank
  Vote* vote_sum = nullptr;      // sum of all ranks' votes
};

/// The objects that every stage of every chunk uses. They are fixed when the optimizer is created.
struct PipelineContext {
  Device* device = nullptr;
  Comm* comm = nullptr;
  const Plan* plan = nullptr;
  Stream* compute = nullptr;
  Stream* exchange = nullptr;
  StepTables tables;
  DeviceResults results;
  bool warming_up = false;  // if true, nothing is sent and no callback is called

  Ops& ops() const { return device->ops(); }
  int64_t world() const { return comm->size(); }
  CommitCondition commit_condition(int64_t fingerprint) const {
    return {.sum = results.vote_sum,
            .world = world(),
            .fingerprint = fingerprint,
            .findings = results.findings};
  }
  DType transport() const { return plan->problem().options.transport_dtype; }
};

/// The inputs of one step.
struct StepInputs {
  int64_t fingerprint = 0;           // hash of the arguments, which must be equal on all ranks
  int64_t committed = 0;             // number of committed steps before this one
  bool local_ok = true;              // if false, this rank votes to reject the step
  GradientFactors factors;           // this rank's factors
  const float* qk_logits = nullptr;  // this rank's logits of all layers; null if there are none
  bool collect_health = false;       // true if the step collects statistics (Health)
  /// The host's table of parameters if all ranks have the same inactive parameters and leave them
  /// out of the exchanges. If null, everything is exchanged.
  const ParamView* omits_inactive = nullptr;
  int64_t gradient_replicas = 0, weight_replicas = 0;  // initial values in the findings
};

}  // namespace muonrt
