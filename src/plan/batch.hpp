#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <vector>

#include "plan/plan.hpp"

namespace muonrt {

/// Matrices of equal key may share a launch: they are stored alike (short side first) and go
/// through the same steps.
struct BatchKey {
  int64_t short_side, long_side;
  int32_t form, steps, group;
  std::vector<int> restarts;
  auto operator<=>(const BatchKey&) const = default;
};

inline BatchKey batch_key(const Matrix& m, int32_t group) {
  return {std::min(m.rows, m.cols),
          std::max(m.rows, m.cols),
          static_cast<int32_t>(m.method.form),
          m.method.steps,
          group,
          m.method.restarts};
}

}  // namespace muonrt
