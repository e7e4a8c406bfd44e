#pragma once

#include <cstdint>
#include <vector>

#include "backend/comm.hpp"
#include "optimizer/finite_check.hpp"
#include "optimizer/settings/settings.hpp"
#include "optimizer/step_report.hpp"
#include "plan/plan.hpp"

namespace muonrt {

/// Finds parameters that the first step changes too much, for example because the learning rate was
/// chosen for a different scale rule. Before the first committed step, the ranks add up the squares
/// of their weights. The sums are integers, so the result is equal on all ranks and does not depend
/// on the mesh.
class FirstUpdate {
 public:
  /// An update is reported as large if its RMS is above this fraction of the RMS of the weights.
  static constexpr double kLimit = 0.05;

  FirstUpdate() = default;
  /// Allocates the memory.
  FirstUpdate(const Plan& plan, int world);

  /// Returns true if the next step must call add_weights(). The result is equal on all ranks.
  bool due() const { return due_; }
  /// Adds up the squares of all weights over the ranks. Collective; blocks.
  /// @param check  Must have checked all parameters for this step. Pass null if this rank has
  ///     invalid arguments: the rank then adds nothing, and the step will be rejected.
  void add_weights(Comm& comm, const FiniteCheck* check);
  /// Call this function after the first committed step. Returns the parameter with the largest
  /// update relative to its weights, if that ratio is above kLimit, and frees the memory. Assumes
  /// that gradients have full rank. Skips parameters without a gradient, and parameters whose
  /// weights or gradient are all zero.
  LargeUpdate on_commit(const OptimizerSettings& settings, const StepArgs& args,
                        const ParamView* params);

 private:
  void fill(int64_t index, const FiniteCheck& check, int rank);

  const Plan* plan_ = nullptr;
  std::vector<int32_t> params_;   // the Muon parameters
  std::vector<int64_t> words_;    // for each parameter, this rank's terms and later the sums
  std::vector<int64_t> by_rank_;  // memory for the terms of all ranks, for kGathered parameters
  bool due_ = false;
};

}  // namespace muonrt
