#pragma once

#include <vector>

#include "backend/scalars.hpp"
#include "optimizer/methods/intervals.hpp"
#include "optimizer/settings/settings.hpp"
#include "optimizer/state.hpp"

namespace muonrt {

/// The memory that steps write: the parameters and their state. Gradients must not overlap this
/// memory, because steps read them.
class WrittenMemory {
 public:
  WrittenMemory() = default;
  /// @param params  Views of the parameters in the settings.
  WrittenMemory(const OptimizerSettings& settings, const ParamView* params, const State& state);
  /// Throws INVALID_ARGUMENT, with both buffers, if `given` overlaps this memory.
  void require_apart_from(const Interval& given) const;
  /// Replaces `from` with `to`. Errors: INVALID_ARGUMENT if `to` overlaps another buffer.
  void move(const Interval& from, const Interval& to);

 private:
  std::vector<Interval> list_;  // ascending and without overlaps
};

}  // namespace muonrt
