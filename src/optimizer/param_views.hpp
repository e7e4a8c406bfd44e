#pragma once

#include <cstdint>
#include <vector>

#include "backend/scalars.hpp"
#include "optimizer/settings/settings.hpp"
#include "optimizer/state.hpp"
#include "plan/rank_chunk.hpp"

namespace muonrt {

/// The view of a parameter and of its state on `rank`. State that owners keep is null in it.
ParamView param_view(const OptimizerSettings& settings, const State& state, int32_t param,
                     int rank);

/// The views of the state that a rank keeps for all holders of a parameter with partial gradients:
/// of the matrices that the rank owns, or of its slice. To the ops each of them is a parameter
/// whose gradient is the sum.
/// @param params       the views of all parameters.
/// @param owner_state  the owner state of the rank, in any order. The views have the same order.
std::vector<ParamView> make_owner_state_views(const OptimizerSettings& settings, const State& state,
                                              const ParamView* params,
                                              const std::vector<OwnerState>& owner_state);

}  // namespace muonrt
