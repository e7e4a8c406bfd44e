#pragma once

#include <cstdint>

#include "backend/comm.hpp"
#include "backend/device.hpp"
#include "backend/ops.hpp"
#include "backend/scalars.hpp"
#include "backend/step.hpp"
#include "plan/plan.hpp"

namespace muonrt {

/// Where stages leave what they find, in memory of the device.
struct DeviceResults {
  Findings* findings = nullptr;  // of this rank
  Vote* vote_sum = nullptr;      // of the vote
};

/// What every stage of every chunk works with; fixed when the optimizer is created.
struct PipelineContext {
  Device* device = nullptr;
  Comm* comm = nullptr;
  const Plan* plan = nullptr;
  Stream* compute = nullptr;
  Stream* exchange = nullptr;  // the comm stream
  StepTables tables;
  DeviceResults results;
  bool warming_up = false;  // nothing is sent, none of the caller's functions is called

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
  int64_t fingerprint = 0;           // step number and scalars, hashed; equal on every rank
  bool local_ok = true;              // false: this rank abstains, so that the step is voted down
  GradientFactors factors;           // this rank's
  const float* qk_logits = nullptr;  // this rank's, of all layers; null: none
  bool collect_health = false;       // measure; where the context has Health
  int64_t gradient_replicas = 0, weight_replicas = 0;  // of the findings that the step starts with
};

}  // namespace muonrt
