#pragma once

#include <string>
#include <vector>

#include "command/plan/models.hpp"
#include "optimizer/settings/settings.hpp"
#include "plan/problem.hpp"

namespace muonrt::tool {

/// Placements as texts for `muonrt layout --placements`. If `params` is empty, the names of the
/// mesh decide; if `grads` is empty, gradients have the placements of the parameters.
struct PlacementWords {
  std::string params, grads, reading = "literal";
};

/// The default settings of an optimizer on this kind of device, with one group for Muon.
OptimizerSettings model_settings(DeviceKind kind = DeviceKind::kHost);

/// The input of the planner for these tensors with the default settings of both groups.
/// Errors: INVALID_ARGUMENT if the mesh, a shape or placements cannot be parsed, or a name of the
/// mesh that decides is unknown.
/// @param mesh     "dp=16,fsdp=8,ep=8"; the names select the cuts (named_placements), and the ranks
///                 of ddp hold partial gradients.
/// @param options  the options; `world` is replaced by the size of the mesh.
/// @param words    placements that replace those of the names.
Problem model_problem(const std::vector<ModelTensor>& tensors, const std::string& mesh,
                      PlanOptions options, const PlacementWords& words = {},
                      const OptimizerSettings& settings = model_settings());

/// The time of the steady clock in seconds.
double now();

}  // namespace muonrt::tool
