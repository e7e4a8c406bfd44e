#pragma once

#include <cstdint>
#include <vector>

#include "backend/device.hpp"
#include "backend/scalars.hpp"
#include "optimizer/settings/settings.hpp"
#include "optimizer/state.hpp"
#include "pipeline/pipeline.hpp"

namespace muonrt {

/// Looks for infinities and NaN in what this rank holds of parameters and their state: a step would
/// carry them on.
class FiniteCheck {
 public:
  FiniteCheck() = default;
  /// Of one of the two lists that are kept.
  static int64_t bytes(int64_t params);
  /// Takes the memory. @param state  of the settings' parameters; it stays where it is.
  FiniteCheck(Device& device, const OptimizerSettings& settings, const State& state);

  /// Blocks, behind what the pipeline has joined.
  /// @param due  by parameter; those that have `bit` are looked at.
  /// Errors: INVALID_ARGUMENT naming the first parameter, what of it and how many elements.
  void require_finite(Pipeline& pipeline, const OptimizerSettings& settings,
                      const ParamView* params, const std::vector<uint8_t>& due, uint8_t bit) const;

 private:
  Device* device_ = nullptr;
  const State* state_ = nullptr;
  Buffer tallies_, mirror_;  // kHeld for each parameter; as the host reads them
};

}  // namespace muonrt
