#pragma once

#include "optimizer/methods/qk_clipper.hpp"
#include "optimizer/param_tables.hpp"
#include "optimizer/settings/settings.hpp"
#include "pipeline/pipeline.hpp"

namespace muonrt {

/// Returns what the pipeline of `rank` does in each step apart from the chunks of its plan: which
/// passes process which parameters. `chunks.newton_schulz` is left null; StepPipelines sets it.
PipelineConfig make_pipeline_config(const OptimizerSettings& settings, const ParamTables& tables,
                                    const State& state, const QkClipper& clipper, int rank);

}  // namespace muonrt
