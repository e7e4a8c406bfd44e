#pragma once

#include "optimizer/methods/qk_clipper.hpp"
#include "optimizer/param_tables.hpp"
#include "optimizer/settings/settings.hpp"
#include "pipeline/pipeline.hpp"

namespace muonrt {

/// What `rank` does in each step beside the slots of its plan: which passes take which parameters.
/// Without the methods of products.
PipelineConfig make_pipeline_config(const OptimizerSettings& settings, const ParamTables& tables,
                                    const State& state, const QkClipper& clipper, int rank);

}  // namespace muonrt
