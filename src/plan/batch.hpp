#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "plan/plan.hpp"

namespace muonrt {

/// Identifies a batch. Matrices with equal keys may share a launch, because they are stored with
/// the same shape (short side first) and run the same steps.
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

/// Returns `ids` in the order in which an owner orthogonalizes them; equal keys are adjacent.
inline std::vector<int32_t> in_batches(const Plan& plan, std::span<const int32_t> ids) {
  std::vector<std::pair<BatchKey, int32_t>> order;
  for (const int32_t id : ids) {
    const Matrix& m = plan.matrices()[static_cast<size_t>(id)];
    order.emplace_back(batch_key(m, plan.problem().params[static_cast<size_t>(m.param)].group), id);
  }
  std::sort(order.begin(), order.end());
  std::vector<int32_t> out;
  for (const auto& [key, id] : order) out.push_back(id);
  return out;
}

}  // namespace muonrt
