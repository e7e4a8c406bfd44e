#pragma once

#include <cstdint>
#include <vector>

#include "backend/scalars.hpp"
#include "optimizer/settings/settings.hpp"
#include "optimizer/state.hpp"
#include "plan/rank_chunk.hpp"

namespace muonrt {

/// Returns the view of a parameter and its state on `rank`. Pointers to state that is stored with
/// owners are null.
ParamView param_view(const OptimizerSettings& settings, const State& state, int32_t param,
                     int rank);

/// Returns the views of this rank's owner state for a parameter: the state of the matrices that the
/// rank owns, or of its slice, stored for all holders. The ops treat each view as a parameter whose
/// gradient is the sum of the partial gradients.
/// @param params       Views of all parameters.
/// @param owner_state  Owner state of the rank, in any order. The views are in the same order.
std::vector<ParamView> make_owner_state_views(const OptimizerSettings& settings, const State& state,
                                              const ParamView* params,
                                              const std::vector<OwnerState>& owner_state);

}  // namespace muonrt
