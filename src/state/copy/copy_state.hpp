#pragma once

#include "optimizer/optimizer.hpp"

namespace muonrt {

/// Copies parameters, state, update counts and random keys from `from` to `to`. Some ranks may have
/// no `from`. Collective over the ranks of `to`. Errors: the same as muonrt_optimizer_copy_state().
/// @param from  Null if this rank does not have the optimizer.
void copy_state(Optimizer& to, Optimizer* from);

}  // namespace muonrt
