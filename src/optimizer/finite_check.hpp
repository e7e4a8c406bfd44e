#pragma once

#include <cstdint>
#include <vector>

#include "backend/device.hpp"
#include "backend/health.hpp"
#include "backend/scalars.hpp"
#include "base/function_ref.hpp"
#include "optimizer/settings/settings.hpp"
#include "optimizer/state.hpp"
#include "pipeline/pipeline.hpp"

namespace muonrt {

/// Checks that parameters and their state are finite on this rank. A step would keep an infinity or
/// a NaN in them. Parameters are checked in batches, so the memory does not grow with their number.
class FiniteCheck {
 public:
  FiniteCheck() = default;
  /// Bytes of one of the two lists of tallies, which parameters share in turn.
  static int64_t bytes(int64_t params);
  /// Allocates the memory. @param state  must outlive the check.
  FiniteCheck(Device& device, const OptimizerSettings& settings, const State& state);

  /// Runs after the work on the caller's stream, and blocks.
  /// @param due  by parameter; the parameters that have `bit` set are checked.
  /// Errors: INVALID_ARGUMENT, naming the first parameter, its buffer or kind of state, and the
  /// number of elements.
  void require_finite(Pipeline& pipeline, const OptimizerSettings& settings,
                      const ParamView* params, const std::vector<uint8_t>& due, uint8_t bit);

  /// What the last call of require_finite has found in this rank's f32 weights of a parameter.
  const Tally& weights(int64_t param) const { return found_[static_cast<size_t>(param)].weights; }
  /// True if the parameter's gradient has a value other than 0 on this rank.
  bool has_gradient(int64_t param) const { return found_[static_cast<size_t>(param)].gradient; }
  /// Releases the memory of `weights` and `has_gradient`, which then must not be called.
  void forget() { found_ = {}; }

 private:
  struct Found {
    Tally weights;
    bool gradient = false;
  };
  /// Checks the parameters [first, end), whose first state entry is `entry`.
  void check(Pipeline& pipeline, const OptimizerSettings& settings, const ParamView* params,
             FunctionRef<bool(int64_t)> is_due, int64_t first, int64_t end);

  Device* device_ = nullptr;
  const State* state_ = nullptr;
  Buffer tallies_,
      host_tallies_;          // kTallies for each of kBatch parameters; their copy for the host
  std::vector<Found> found_;  // by parameter; empty after `forget`
};

}  // namespace muonrt
