#pragma once

#include <cstdint>
#include <vector>

#include "command/plan/models.hpp"

namespace muonrt::tool {

/// The values of a tensor after some steps with the default settings, by the float64 reference.
struct Expected {
  std::vector<double> data, momentum, variance;                          // variance: AdamW
  double tolerance = 0, momentum_tolerance = 0, variance_tolerance = 0;  // absolute
};

/// How values are rounded between float64 and what muonrt stores.
struct Rounding {
  bool half_data = false, half_grad = false, half_transport = false, half_iteration = false;
};

/// Values as `element_value` of sharded.hpp gives them.
std::vector<Expected> reference_steps(const std::vector<ModelTensor>& tensors,
                                      const Rounding& rounding, int steps, double lr);

}  // namespace muonrt::tool
