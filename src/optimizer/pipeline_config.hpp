#pragma once

#include "optimizer/methods/qk_clipper.hpp"
#include "optimizer/param_tables.hpp"
#include "optimizer/settings/settings.hpp"
#include "pipeline/pipeline.hpp"

namespace muonrt {

/// Returns the configuration of the pipeline of `rank`, which defines the parameters that each pass
/// processes in a step. The chunks of the rank's plan are not included. `chunks.newton_schulz` is
/// null, because StepPipelines sets it later.
PipelineConfig make_pipeline_config(const OptimizerSettings& settings, const ParamTables& tables,
                                    const State& state, const QkClipper& clipper, int rank);

}  // namespace muonrt
