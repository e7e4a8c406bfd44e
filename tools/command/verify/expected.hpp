#pragma once

#include <cstdint>
#include <vector>

#include "command/plan/models.hpp"

namespace muonrt::tool {

/// The values of a tensor after some steps with the default settings, computed by the float64
/// reference.
struct Expected {
  // `variance` is empty except for AdamW
  std::vector<double> data, momentum, variance;
  double tolerance = 0, momentum_tolerance = 0, variance_tolerance = 0;  // absolute
};

/// The values that the reference rounds to bf16.
struct Rounding {
  bool half_data = false, half_grad = false, half_transport = false, half_iteration = false;
};

/// Computes all steps, with the values of `element_value` in sharded.hpp.
std::vector<Expected> reference_steps(const std::vector<ModelTensor>& tensors,
                                      const Rounding& rounding, int steps, double lr);

}  // namespace muonrt::tool
