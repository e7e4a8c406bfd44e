#pragma once

#include "optimizer/methods/qk_clipper.hpp"
#include "optimizer/param_tables.hpp"
#include "optimizer/settings/settings.hpp"
#include "pipeline/pipeline.hpp"

namespace muonrt {

/// Returns the pipeline configuration of `rank`. It lists the parameters that each pass of a step
/// processes, but not the chunks of the rank's plan. Leaves `chunks.newton_schulz` null;
/// StepPipelines sets it later.
PipelineConfig make_pipeline_config(const OptimizerSettings& settings, const ParamTables& tables,
                                    const State& state, const QkClipper& clipper, int rank);

}  // namespace muonrt
