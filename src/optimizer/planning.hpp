#pragma once

#include <string>

#include "optimizer/settings/settings.hpp"
#include "optimizer/step_pipelines.hpp"

namespace muonrt {

/// Returns the rules by which the device that the settings select stores matrices.
const MatrixRules& matrix_rules(const OptimizerSettings& settings);

/// Computes what a step of an optimizer will do and need on all ranks, without a device, a
/// communicator or buffers.
class Planning {
 public:
  /// @param settings  The fields data, grad, master and local_shape of the parameters are not used.
  /// @param checked   True if the settings come from an existing optimizer, so they are valid and
  ///     contain the owners.
  /// Errors: any error of validate(), assign_owners(), make_newton_schulz() or Plan.
  Planning(OptimizerSettings settings, int world, bool checked = false);

  const OptimizerSettings& settings() const { return settings_; }
  const Plan& plan() const { return pipelines_.full_plan(); }
  const PlanReports& reports() const { return reports_; }
  std::string describe(bool json, int64_t max_rows) const {
    return pipelines_.describe(reports_, json, max_rows);
  }

 private:
  OptimizerSettings settings_;
  StepPipelines pipelines_;  // contains only the plans
  PlanReports reports_;
};

}  // namespace muonrt
