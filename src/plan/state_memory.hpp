#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.hpp"

namespace muonrt {

/// Bytes of the local elements of each rank, by kind. `masters` includes remainders and the masters
/// of the caller, `own_masters` only those that muonrt stores. `moments` has in addition
/// ParamSpec::owner_bytes for owned matrices, but not the state of summed gradients.
struct LocalBytes {
  std::vector<int64_t> params, grads, masters, own_masters, moments;
};
LocalBytes local_bytes(const Plan& plan);

}  // namespace muonrt
