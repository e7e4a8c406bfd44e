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

/// Checks that the parameters and their state are finite on this rank, because an infinity or NaN
/// would persist in all later steps. The needed device memory does not grow with the number of
/// parameters, because a fixed number of parameters is checked at a time.
class FiniteCheck {
 public:
  FiniteCheck() = default;
  /// Returns the bytes of one list of tallies. There are two lists, which consecutive batches of
  /// parameters use in turn.
  static int64_t bytes(int64_t params);
  /// Allocates the memory.
  /// @param state  It must outlive this object.
  FiniteCheck(Device& device, const OptimizerSettings& settings, const State& state);

  /// Checks the parameters for which `bit` is set in `due`, which is indexed by parameter. Runs
  /// after the work on the caller's stream, and blocks.
  /// Errors: INVALID_ARGUMENT if an element is non-finite. The message names the first such
  /// parameter, its buffer or kind of state, and the number of non-finite elements.
  void require_finite(Pipeline& pipeline, const OptimizerSettings& settings,
                      const ParamView* params, const std::vector<uint8_t>& due, uint8_t bit);

  /// Returns the tally that the last call to require_finite() computed for this rank's f32 weights
  /// of a parameter.
  const Tally& weights(int64_t param) const { return found_[static_cast<size_t>(param)].weights; }
  /// Returns true if the parameter's gradient has a value other than 0 on this rank.
  bool has_gradient(int64_t param) const { return found_[static_cast<size_t>(param)].gradient; }
  /// Frees the memory of weights() and has_gradient(), which must not be called afterwards.
  void forget() { found_ = {}; }

 private:
  struct Found {
    Tally weights;
    bool gradient = false;
  };
  /// Checks the parameters in [first, end) for which `is_due` returns true.
  void check(Pipeline& pipeline, const OptimizerSettings& settings, const ParamView* params,
             FunctionRef<bool(int64_t)> is_due, int64_t first, int64_t end);

  Device* device_ = nullptr;
  const State* state_ = nullptr;
  Buffer tallies_, host_tallies_;  // kTallies for each of kBatch parameters, and a host copy
  std::vector<Found> found_;       // one for each parameter; empty after forget()
};

}  // namespace muonrt
