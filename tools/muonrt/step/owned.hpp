#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "muonrt/muonrt.hpp"
#include "muonrt/step/tensors.hpp"

namespace muonrt::tool {

/// The elements of a tensor whose momentum (and variance) lie in this rank's view.
std::vector<Stretch> kept_elements(Optimizer& optimizer, const StepTensor& tensor, int32_t kind,
                                   int rank);

}  // namespace muonrt::tool
