#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "muonrt/muonrt.h"
#include "opt_json/config.hpp"
#include "opt_json/optimizer_options.hpp"

namespace muonrt::tool {

/// The settings of one rule as C structs.
class BoundRule {
 public:
  /// If settings cannot be combined, throws a std::runtime_error with the key and its value.
  /// @param file  the path of opt.json, for messages.
  BoundRule(const std::string& file, const ParamConfig& config);

  /// Returns the settings at `step`, counted from 0. The pointers in the result are valid while
  /// this object exists.
  muonrt_group_t group(int64_t step) const;
  /// Returns the QK-clip, or null if the rule has none. The pointer stays valid if this object is
  /// moved.
  const muonrt_qk_clip_t* qk_clip() const { return qk_clip_.get(); }
  /// Sets the owners and the priority of a parameter. The pointer to the owners is valid while this
  /// object exists.
  void set_exchange(muonrt_param_t& param) const;
  /// Returns whether `group` returns the same result for every step.
  bool constant() const { return !schedule_ && !lr_schedule_; }

 private:
  void take_rates(const ParamConfig& config);
  void take_list(const ParamConfig& config);
  void take_qk_clip(const ParamConfig& config);
  [[noreturn]] void reject(const char* key, const std::string& value) const;

  std::string where_, name_;
  muonrt_group_t group_;
  std::vector<double> custom_;
  std::vector<int32_t> gram_restarts_, select_, owners_;
  int32_t owner_ = -1, priority_ = 0;
  std::unique_ptr<muonrt_qk_clip_t> qk_clip_;
  bool has_gram_restarts_ = false;
  std::optional<MomentumSchedule> schedule_;
  std::optional<LrSchedule> lr_schedule_;
};

/// Returns the momentum at `step`. The momentum rises linearly from `from` to `momentum` during the
/// warm-up, and falls back to `from` during the cool-down.
double scheduled_momentum(const MomentumSchedule& schedule, double momentum, int64_t step);

/// Returns the factor of `lr` at `step`. If the schedule is a list of learning rates, returns the
/// learning rate itself. The factor rises linearly during the warm-up. Afterwards, `linear` and
/// `cosine` fall until `total_steps`, and `wsd` falls linearly over the last `cooldown_steps`.
double scheduled_lr(const LrSchedule& schedule, int64_t step);

/// Returns the number of committed steps in a checkpoint. If the checkpoint cannot be read, returns
/// 0, because loading it will report the error.
int64_t saved_steps(const std::string& folder);

/// Returns the options of the whole optimizer. Throws std::runtime_error if Muon rules have
/// different values of transport_dtype.
/// @param used  indices of the rules whose parameters the optimizer updates.
OptimizerOptions bound_options(const StepConfig& config, const std::vector<size_t>& used);

/// Returns a warning if the first step has changed a matrix by more than 5% of its RMS, otherwise
/// "".
/// @param name  the name of the report's large_update_param.
/// @param setting  the name and the value of the learning rate to which the update is proportional.
std::string large_update_text(const muonrt_step_report_t& report, const std::string& name,
                              const char* setting, double rate);

/// Returns the value of muonrt_normuon_axis_t for the name of an axis.
int32_t bound_axis(const std::string& axis);

}  // namespace muonrt::tool
