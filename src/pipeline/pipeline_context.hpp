#pragma once

#include <cstdint>

#include "backend/comm.hpp"
#include "backend/device.hpp"
#include "backend/ops.hpp"
#include "backend/scalars.hpp"
#include "backend/step.hpp"
#include "plan/plan.hpp"

namespace muonrt {

/// The results of the stages, in device memory.
struct DeviceResults {
  Findings* findings = nullptr;  // of this rank
  Vote* vote_sum = nullptr;      // sum of all ranks' votes
};

/// What every stage of every chunk uses. It is fixed when the optimizer is created.
struct PipelineContext {
  Device* device = nullptr;
  Comm* comm = nullptr;
  const Plan* plan = nullptr;
  Stream* compute = nullptr;
  Stream* exchange = nullptr;
  StepTables tables;
  DeviceResults results;
  bool warming_up = false;  // true: nothing is sent, and no callback is called

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

/// What differs from step to step.
struct StepInputs {
  int64_t fingerprint = 0;           // hash of the arguments, which must be equal on all ranks
  int64_t committed = 0;             // steps before this one
  bool local_ok = true;              // false: this rank votes to reject the step
  GradientFactors factors;           // of this rank
  const float* qk_logits = nullptr;  // of this rank, of all layers; null: none
  bool collect_health = false;       // collect statistics; only if the pipeline has a Health
  /// The host's table of parameters if all ranks have the same inactive ones, whose bytes are then
  /// not exchanged; null: everything is exchanged.
  const ParamView* omits_inactive = nullptr;
  int64_t gradient_replicas = 0, weight_replicas = 0;  // initial values in the findings
};

}  // namespace muonrt
