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

/// The values that stochastic rounding depends on, except the step and the element: a seed, and a
/// key for each parameter. The key is the index that the parameter has, or, if its state was
/// loaded, the index that it had when the state was saved.
struct RandomKeys {
  uint64_t seed = 0;
  std::vector<uint32_t> keys;
};

/// The tables that the ops read in a step: the views of the parameters, the views of this rank's
/// owner state (OwnerState), and the scalars of the groups and of AdamW. The host writes the tables
/// between steps. If the device cannot read the host's tables, each step first copies them to the
/// device.
class ParamTables {
 public:
  ParamTables() = default;
  /// Allocates the host's tables and fills the views. All parameters are inactive at first.
  /// @param chunks  Chunks of `rank` in the plan that `state` was created for.
  /// Errors: INVALID_ARGUMENT, with the parameter, if the device cannot access one of its buffers.
  ParamTables(Device& device, const OptimizerSettings& settings, const State& state,
              const std::vector<RankChunk>& chunks, int rank);
  /// Allocates the device's copy of the tables if the device cannot read the host's tables.
  void allocate_device_copy(Device& device);
  /// Sets the gradients of the owner state to the sums of the pipeline.
  /// @param full_pipeline  It must have the chunks that were passed to the constructor.
  void bind_sums(const Pipeline& full_pipeline);

  /// Sets which parameters are active in a step, and all scalars of the step.
  /// @param plan       Plan of the step.
  /// @param committed  Number of committed steps before this one.
  /// @return The fingerprint: a hash of all values set here that could differ between ranks.
  /// Errors: INVALID_ARGUMENT if f32 cannot represent a number, a parameter index is invalid, or an
  /// active parameter has no gradient. After an error, call deactivate_all().
  int64_t fill_for_step(const OptimizerSettings& settings, const Plan& plan, const StepArgs& args,
                        int64_t committed, bool in_blocks);
  /// Moves a parameter to `data`. Also updates those views of its owner state that point into the
  /// parameter.
  void set_data(int64_t param, void* data);
  /// Makes all parameters inactive. The step then reads no gradients.
  void deactivate_all();
  /// Returns a hash of the set of active parameters. The hash is at least 2^32, so it never equals
  /// a rank number.
  int64_t active_hash() const;
  /// Adds 1 to the update count of each active parameter. Call it when the step is committed.
  void on_commit();

  /// Returns the update count of a parameter: the number of committed steps in which the parameter
  /// was active. AdamW's bias correction uses it.
  int64_t updates(int64_t param) const { return updates_[static_cast<size_t>(param)]; }
  void set_updates(int64_t param, int64_t updates) {
    updates_[static_cast<size_t>(param)] = updates;
  }
  /// Sets the update counts to their values after `steps` committed steps, assuming that
  /// StepArgs::inactive_params was empty in all of them.
  void set_steps(const OptimizerSettings& settings, int64_t steps);

  RandomKeys random_keys() const;
  void set_random_keys(const RandomKeys& keys);

  /// Returns the views of the parameters in host memory. Their addresses do not change.
  ParamView* params() { return params_; }
  const ParamView* params() const { return params_; }
  /// Returns the index of the parameter to which a view belongs. Also accepts views of owner state.
  int64_t param_of(int64_t view) const;

  /// Returns the tables with the addresses that the device reads.
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
  /// Copies the scalars and the active flag of each parameter to the views of its owner state.
  void follow_params();
  int64_t compute_fingerprint(const OptimizerSettings& settings, const StepArgs& args,
                              int64_t committed) const;

  Buffer host_;
  Buffer device_;                  // empty if the device reads host_
  ParamView* params_ = nullptr;    // params_, groups_ and adam_ point into host_
  MuonScalars* groups_ = nullptr;  // indexed by group
  AdamScalars* adam_ = nullptr;    // indexed by parameter
  int64_t group_count_ = 0;
  std::vector<int64_t> updates_;       // indexed by parameter
  std::vector<int32_t> owner_params_;  // for each view of owner state, its parameter
};

}  // namespace muonrt
