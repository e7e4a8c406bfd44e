#pragma once

#include "optimizer/optimizer.hpp"

namespace muonrt {

/// Copies parameters, state, counts and keys from the optimizer whose ranks pass `from` to `to`.
/// Collective over the ranks of `to`. Errors: as muonrt_optimizer_copy_state().
/// @param from  null: this rank has none.
void copy_state(Optimizer& to, Optimizer* from);

}  // namespace muonrt
