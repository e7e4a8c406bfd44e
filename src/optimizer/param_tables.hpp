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

/// What random rounding follows from, besides step and element: a seed, and a key of each parameter
/// (its index, unless its state came from elsewhere).
struct RandomKeys {
  uint64_t seed = 0;
  std::vector<uint32_t> keys;
};

/// What the ops read in a step: the views of the parameters and behind them of what this rank keeps
/// of addends (OwnerState), the scalars of the groups, those of AdamW. The host writes them between
/// steps. Where the device does not read the host's, a step begins with a copy.
class ParamTables {
 public:
  ParamTables() = default;
  /// Takes the host's memory and fills the views. Nobody takes part yet.
  /// @param slots  what `rank` does in each, of the plan that `state` was made for.
  /// Errors: INVALID_ARGUMENT, naming the parameter, for a buffer that the device does not reach.
  ParamTables(Device& device, const OptimizerSettings& settings, const State& state,
         const std::vector<RankChunk>& chunks, int rank);
  /// Takes the device's memory, where it needs some.
  void allocate_device_copy(Device& device);
  /// What is kept of addends finds the sums there. @param whole  of the same slots.
  void bind_sums(const Pipeline& whole);

  /// Who takes part in a step, and every number of it.
  /// @param plan       of the step.
  /// @param committed  steps so far.
  /// @return  the stamp: a hash of everything here in which ranks may differ.
  /// Errors: INVALID_ARGUMENT for a number that f32 does not hold, a parameter that is none, or one
  /// whose gradient is missing; `deactivate_all` has to follow.
  int64_t fill_for_step(const OptimizerSettings& settings, const Plan& plan, const StepArgs& step,
                        int64_t committed, bool in_blocks);
  /// A parameter lies at `data` now, and so does what is kept of it.
  void set_data(int64_t param, void* data);
  /// Nobody takes part in the step, and no gradient is read.
  void deactivate_all();
  /// The step of the last `fill` was committed.
  void on_commit();

  /// Committed steps in which a parameter took part: AdamW's bias correction.
  int64_t updates(int64_t param) const { return updates_[static_cast<size_t>(param)]; }
  void set_updates(int64_t param, int64_t updates) {
    updates_[static_cast<size_t>(param)] = updates;
  }
  /// As if so many steps had been committed, with all gradients there.
  void set_steps(const OptimizerSettings& settings, int64_t steps);

  RandomKeys random_keys() const;
  void set_random_keys(const RandomKeys& keys);

  /// The views of the parameters, as the host reads them. Ops may have their addresses.
  ParamView* params() { return params_; }
  const ParamView* params() const { return params_; }
  /// The parameter of a view, be it of one or of what is kept.
  int64_t param_of(int64_t view) const;

  /// Where the device reads them.
  StepTables on_device() const;
  GradientTables gradient_tables() const;
  TableCopy copy() const;

 private:
  int64_t param_count() const { return static_cast<int64_t>(updates_.size()); }
  void choose_active(const OptimizerSettings& settings, const StepArgs& step, int64_t committed);
  void fill_groups(const OptimizerSettings& settings, const StepArgs& step, int64_t committed,
                   bool in_blocks);
  AdamScalars adam_scalars(const OptimizerSettings& settings, int64_t param, const StepArgs& step,
                           float grad_scale) const;
  void follow_params();
  int64_t compute_fingerprint(const OptimizerSettings& settings, const StepArgs& step,
                              int64_t committed) const;

  Buffer host_;
  Buffer device_;                  // empty where the device reads the host's
  ParamView* params_ = nullptr;    // these three in host_
  MuonScalars* groups_ = nullptr;  // by group
  AdamScalars* adam_ = nullptr;    // by parameter
  int64_t group_count_ = 0;
  std::vector<int64_t> updates_;       // by parameter
  std::vector<int32_t> owner_params_;  // the parameter of each view behind the parameters'
};

}  // namespace muonrt
