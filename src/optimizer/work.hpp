#pragma once

#include "optimizer/methods/qk_clipper.hpp"
#include "optimizer/settings/settings.hpp"
#include "optimizer/tables.hpp"
#include "pipeline/pipeline.hpp"

namespace muonrt {

/// What `rank` does in each step beside the slots of its plan: which passes take which parameters.
/// Without the methods of products.
StepWork make_work(const OptimizerSettings& settings, const Tables& tables, const State& state,
                   const QkClipper& clipper, int rank);

}  // namespace muonrt
