#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "muonrt/muonrt.h"
#include "opt_json/config.hpp"

namespace muonrt::tool {

/// One rule as the C ABI takes it. What this muonrt cannot do is refused by key and value.
class BoundRule {
 public:
  /// @param file  opt.json, for messages. Throws std::runtime_error.
  BoundRule(const std::string& file, const ParamConfig& config);

  /// The settings at a step, counted from 0; valid as long as this object.
  muonrt_group_t group(int64_t step) const;
  /// Null where there is none; valid as long as this object, wherever it is moved to.
  const muonrt_qk_clip_t* qk_clip() const { return qk_clip_.get(); }
  /// Whether `group` gives the same at every step.
  bool constant() const { return !schedule_; }

 private:
  void take_rates(const ParamConfig& config);
  void take_list(const ParamConfig& config);
  void take_qk_clip(const ParamConfig& config);
  [[noreturn]] void refuse(const char* key, const std::string& value) const;

  std::string where_, name_;
  muonrt_group_t group_;
  std::vector<double> custom_;
  std::vector<int32_t> restarts_, select_;
  std::unique_ptr<muonrt_qk_clip_t> qk_clip_;
  bool restarts_given_ = false;
  std::optional<MomentumSchedule> schedule_;
};

/// Momentum at a step: from `from` to `momentum` in equal parts over the first steps, and back over
/// the last.
double scheduled_momentum(const MomentumSchedule& schedule, double momentum, int64_t step);

/// What concerns the whole optimizer. @param used  the rules of the parameters that step.
muonrt_optimizer_options_t bound_options(const StepConfig& config, const std::vector<size_t>& used);

/// MUONRT_NORMUON_... of an axis.
int32_t bound_axis(const std::string& axis);

}  // namespace muonrt::tool
