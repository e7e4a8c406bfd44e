#pragma once

#include <cstdint>
#include <vector>

#include "backend/scalars.hpp"
#include "optimizer/settings/settings.hpp"
#include "optimizer/state.hpp"
#include "plan/rank_chunk.hpp"

namespace muonrt {

/// A parameter and its state, as they lie on `rank`.
ParamView param_view(const OptimizerSettings& settings, const State& state, int32_t param,
                     int rank);

/// State that a rank keeps for all holders of a parameter whose gradients are addends: of the
/// matrices it owns, or of its slice. To the ops each is a parameter whose gradient is the sum.
/// @param params  the views of all parameters.
/// @param kept    what the rank keeps of them, in any order, as the views come back.
std::vector<ParamView> make_owner_state_views(const OptimizerSettings& settings, const State& state,
                                              const ParamView* params,
                                              const std::vector<OwnerState>& owner_state);

}  // namespace muonrt
