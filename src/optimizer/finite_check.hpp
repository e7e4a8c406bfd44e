#pragma once

#include <cstdint>
#include <vector>

#include "backend/device.hpp"
#include "backend/health.hpp"
#include "backend/scalars.hpp"
#include "optimizer/settings/settings.hpp"
#include "optimizer/state.hpp"
#include "pipeline/pipeline.hpp"

namespace muonrt {

/// Checks that parameters and their state are finite on this rank. A step would keep an infinity or
/// a NaN in them.
class FiniteCheck {
 public:
  FiniteCheck() = default;
  /// Bytes of one of the two lists of tallies.
  static int64_t bytes(int64_t params);
  /// Allocates the memory. @param state  must outlive the check.
  FiniteCheck(Device& device, const OptimizerSettings& settings, const State& state);

  /// Runs after the work on the caller's stream, and blocks.
  /// @param due  by parameter; the parameters that have `bit` set are checked.
  /// Errors: INVALID_ARGUMENT, naming the first parameter, its buffer or kind of state, and the
  /// number of elements.
  void require_finite(Pipeline& pipeline, const OptimizerSettings& settings,
                      const ParamView* params, const std::vector<uint8_t>& due, uint8_t bit) const;

  /// What the last call of require_finite has counted of this rank's f32 weights of a parameter,
  /// or of its gradient.
  const Tally& weights(int64_t param, const ParamView& view) const;
  const Tally& gradient(int64_t param) const;

 private:
  Device* device_ = nullptr;
  const State* state_ = nullptr;
  Buffer tallies_, host_tallies_;  // kTallies for each parameter; their copy for the host
};

}  // namespace muonrt
