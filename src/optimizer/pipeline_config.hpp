#pragma once

#include "optimizer/methods/qk_clipper.hpp"
#include "optimizer/param_tables.hpp"
#include "optimizer/settings/settings.hpp"
#include "pipeline/pipeline.hpp"

namespace muonrt {

/// Returns the pipeline configuration of `rank`, which states the parameters that each pass of a
/// step processes. Leaves `chunks.newton_schulz` null; StepPipelines sets it later. The chunks of
/// the rank's plan are not part of the configuration.
PipelineConfig make_pipeline_config(const OptimizerSettings& settings, const ParamTables& tables,
                                    const State& state, const QkClipper& clipper, int rank);

}  // namespace muonrt
