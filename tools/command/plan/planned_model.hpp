#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "command/plan/plan_arguments.hpp"
#include "command/plan/stages.hpp"
#include "show/table.hpp"

namespace muonrt::tool {

/// One pipeline stage with its plan.
struct PlannedStage {
  int64_t first_layer = 0, layers = 0;
  ModelTotals totals;
  Plan plan;
  muonrt_plan_summary_t summary;
  muonrt_plan_rank_t largest;  // the rank with the most memory
};

/// The model that the command line selects, divided into pipeline stages.
struct ModelStages {
  std::vector<Stage> stages;
  std::optional<StepConfig> config;
  std::vector<std::string> notes;
};

/// Reads the model. Throws a std::runtime_error that names the option.
ModelStages read_model(const PlanArguments& a);

/// The plans of all stages on one mesh.
struct PlannedModel {
  std::string mesh;  // as text, including the mesh of the experts
  int32_t world = 0;
  std::vector<PlannedStage> stages;
  size_t shown = 0;    // index of the stage to describe
  int64_t frozen = 0;  // number of tensors

  /// Returns the rank that needs the most memory in any stage.
  const muonrt_plan_rank_t& largest() const;
  size_t largest_stage() const;
  ModelTotals totals() const;
  Table table() const;  // one row for each stage
};

/// Plans all stages. @param mesh  index into a.meshes.
PlannedModel plan_model(const PlanArguments& a, const ModelStages& model, size_t mesh);

}  // namespace muonrt::tool
