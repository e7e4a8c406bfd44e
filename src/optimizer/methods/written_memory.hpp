#pragma once

#include <vector>

#include "backend/scalars.hpp"
#include "optimizer/methods/intervals.hpp"
#include "optimizer/settings/settings.hpp"
#include "optimizer/state.hpp"

namespace muonrt {

/// The memory that steps write: parameters and their state. Gradients, which are bound later, are
/// read meanwhile.
class WrittenMemory {
 public:
  WrittenMemory() = default;
  /// @param params  views of the settings' parameters.
  WrittenMemory(const OptimizerSettings& settings, const ParamView* params, const State& state);
  /// Errors: INVALID_ARGUMENT naming both where they overlap.
  void require_apart_from(const Interval& given) const;
  /// What stood at `from` stands at `to` now. Errors: INVALID_ARGUMENT where that overlaps another.
  void move(const Interval& from, const Interval& to);

 private:
  std::vector<Interval> list_;  // ascending and apart from one another
};

}  // namespace muonrt
