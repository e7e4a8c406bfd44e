#pragma once

#include <cstdint>
#include <vector>

#include "backend/device.hpp"
#include "backend/scalars.hpp"
#include "optimizer/settings/settings.hpp"
#include "optimizer/state.hpp"
#include "pipeline/pipeline.hpp"
#include "plan/plan.hpp"

namespace muonrt {

/// What stochastic rounding depends on apart from the step and the element: a seed, and a key for
/// each parameter. The key is the index of the parameter unless its state was loaded.
struct RandomKeys {
  uint64_t seed = 0;
  std::vector<uint32_t> keys;
};

/// The tables that the ops read in a step: the views of the parameters, then the views of this
/// rank's owner state (OwnerState); the scalars of the groups; the scalars of AdamW. The host
/// writes them between steps. If the device cannot read the host's tables, each step begins with a
/// copy.
class ParamTables {
 public:
  ParamTables() = default;
  /// Allocates the host's tables and fills the views. All parameters are inactive.
  /// @param chunks  the chunks of `rank` in the plan that `state` was made for.
  /// Errors: INVALID_ARGUMENT, naming the parameter, for a buffer that the device does not reach.
  ParamTables(Device& device, const OptimizerSettings& settings, const State& state,
              const std::vector<RankChunk>& chunks, int rank);
  /// Allocates the device's copy of the tables if the device cannot read the host's.
  void allocate_device_copy(Device& device);
  /// Sets the gradients of the owner state to the sums of the pipeline.
  /// @param full_pipeline  must have the chunks that were passed to the constructor.
  void bind_sums(const Pipeline& full_pipeline);

  /// Sets which parameters are active in a step, and all scalars of the step.
  /// @param plan       the plan of the step.
  /// @param committed  committed steps before this one.
  /// @return  the fingerprint: a hash of everything here in which ranks may differ.
  /// Errors: INVALID_ARGUMENT for a number that f32 cannot represent, an invalid parameter index,
  /// or an active parameter without a gradient. Call deactivate_all after an error.
  int64_t fill_for_step(const OptimizerSettings& settings, const Plan& plan, const StepArgs& args,
                        int64_t committed, bool in_blocks);
  /// Moves a parameter, and the owner state that points into it, to `data`.
  void set_data(int64_t param, void* data);
  /// Makes all parameters inactive. The step reads no gradient.
  void deactivate_all();
  /// A hash of the parameters that are active, at least 2^32.
  int64_t active_hash() const;
  /// Counts the step of the last fill_for_step as committed.
  void on_commit();

  /// Update count: the committed steps in which a parameter was active. AdamW's bias correction
  /// uses it.
  int64_t updates(int64_t param) const { return updates_[static_cast<size_t>(param)]; }
  void set_updates(int64_t param, int64_t updates) {
    updates_[static_cast<size_t>(param)] = updates;
  }
  /// Sets the update counts to those after `steps` committed steps in which no parameter was listed
  /// as inactive.
  void set_steps(const OptimizerSettings& settings, int64_t steps);

  RandomKeys random_keys() const;
  void set_random_keys(const RandomKeys& keys);

  /// The views of the parameters in host memory. Their addresses do not change.
  ParamView* params() { return params_; }
  const ParamView* params() const { return params_; }
  /// The parameter of a view, which may be a view of owner state.
  int64_t param_of(int64_t view) const;

  /// The tables at the addresses that the device reads.
  StepTables on_device() const;
  GradientTables gradient_tables() const;
  TableCopy copy() const;

 private:
  int64_t param_count() const { return static_cast<int64_t>(updates_.size()); }
  void choose_active(const OptimizerSettings& settings, const StepArgs& args, int64_t committed);
  void fill_groups(const OptimizerSettings& settings, const StepArgs& args, int64_t committed,
                   bool in_blocks);
  AdamScalars adam_scalars(const OptimizerSettings& settings, int64_t param, const StepArgs& args,
                           float grad_scale) const;
  /// Copies to the views of owner state whether their parameter is active, and its scalars.
  void follow_params();
  int64_t compute_fingerprint(const OptimizerSettings& settings, const StepArgs& args,
                              int64_t committed) const;

  Buffer host_;
  Buffer device_;                  // empty if the device reads host_
  ParamView* params_ = nullptr;    // in host_, as the next two
  MuonScalars* groups_ = nullptr;  // by group
  AdamScalars* adam_ = nullptr;    // by parameter
  int64_t group_count_ = 0;
  std::vector<int64_t> updates_;       // by parameter
  std::vector<int32_t> owner_params_;  // by view of owner state: its parameter
};

}  // namespace muonrt
