#pragma once

#include <cstdint>
#include <vector>

#include "backend/comm.hpp"
#include "optimizer/finite_check.hpp"
#include "optimizer/settings/settings.hpp"
#include "optimizer/step_report.hpp"
#include "plan/plan.hpp"

namespace muonrt {

/// Finds parameters that the first step moves too far, because their learning rate belongs to
/// another scale rule. The ranks add their weights' squares once, before the first committed step.
/// The sums are integers, so the result is equal on all ranks and does not depend on the mesh.
class FirstUpdate {
 public:
  /// An update is large if its RMS is above this share of the weights' RMS.
  static constexpr double kLimit = 0.05;

  FirstUpdate() = default;
  /// Allocates the memory.
  FirstUpdate(const Plan& plan, int world);

  /// Whether the next step must call `add_weights`; equal on all ranks.
  bool due() const { return due_; }
  /// Adds the squares of all weights. Collective; blocks.
  /// @param check  has checked all parameters for this step; null if this rank's arguments are
  ///     invalid. The rank then adds nothing, and the step is rejected.
  void add_weights(Comm& comm, const FiniteCheck* check);
  /// Call it after the first committed step; it releases the memory. Returns the parameter with the
  /// largest update relative to its weights if that is above kLimit. It assumes gradients of full
  /// rank; parameters without a gradient, or with weights or a gradient of zeros, are left out.
  LargeUpdate on_commit(const OptimizerSettings& settings, const StepArgs& args,
                        const ParamView* params);

 private:
  void fill(int64_t index, const FiniteCheck& check, int rank);

  const Plan* plan_ = nullptr;
  std::vector<int32_t> params_;   // those of Muon
  std::vector<int64_t> words_;    // by parameter: this rank's terms, then their sum
  std::vector<int64_t> by_rank_;  // memory for the terms of some parameters of all ranks
  bool due_ = false;
};

}  // namespace muonrt
