#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.hpp"

namespace muonrt {

/// The bytes of the local elements of each rank, by kind. `masters` includes remainders and the
/// master weights in the caller's memory; `own_masters` contains only the bytes that muonrt stores.
/// `moments` includes ParamSpec::owner_bytes for the matrices that the rank owns, but not the state
/// of summed gradients.
struct LocalBytes {
  std::vector<int64_t> params, grads, masters, own_masters, moments;
};
LocalBytes local_bytes(const Plan& plan);

}  // namespace muonrt
