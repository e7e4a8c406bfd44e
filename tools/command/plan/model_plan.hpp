#pragma once

#include <string>
#include <vector>

#include "command/plan/models.hpp"
#include "optimizer/settings/settings.hpp"
#include "plan/problem.hpp"

namespace muonrt::tool {

/// What `muonrt layout --placements` takes; empty: what the mesh's names say (params), or as the
/// parameters (grads).
struct PlacementWords {
  std::string params, grads, reading = "literal";
};

/// The default settings of an optimizer on such a device, with its Muon group.
OptimizerSettings model_settings(DeviceKind kind = DeviceKind::kHost);

/// What the planner would be told of these tensors with the default settings of both groups.
/// @param mesh  "dp=16,fsdp=8,ep=8"; the names say what is cut (named_placements), and ddp that its
///     ranks hold addends of the gradients.
/// @param options  all but the world, which is the mesh's size.
/// @param words  placements in place of the names', where given.
/// Errors: INVALID_ARGUMENT for a mesh, a shape or placements that are none.
Problem model_problem(const std::vector<ModelTensor>& tensors, const std::string& mesh,
                      PlanOptions options, const PlacementWords& words = {},
                      const OptimizerSettings& settings = model_settings());

/// Seconds of the steady clock.
double now();

}  // namespace muonrt::tool
