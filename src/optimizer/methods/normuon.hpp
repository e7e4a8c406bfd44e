#pragma once

#include <cstdint>
#include <vector>

#include "backend/device.hpp"
#include "backend/normuon.hpp"
#include "optimizer/settings/settings.hpp"
#include "plan/plan.hpp"

namespace muonrt {

struct StateRange;

/// Returns the number of neurons in all matrices of a parameter, or 0 if NorMuon is off for the
/// parameter.
int64_t normuon_neurons(const OptimizerSettings& settings, int32_t param);

/// Returns a hash that identifies which rows or columns of a parameter have moments, and their
/// order.
uint64_t normuon_digest(const OptimizerSettings& settings, int32_t param);

/// Returns the bytes that a rank allocates for a parameter with this number of neurons, if the rank
/// owns any of its matrices. The rank then stores three numbers (moment, staged moment, factor) for
/// every neuron of the whole parameter.
int64_t normuon_bytes(int64_t neurons);

/// The second moments of NorMuon for the matrices that one rank owns.
class NormuonMemory {
 public:
  NormuonMemory() = default;
  /// Allocates the moments and sets them to zero. Allocates nothing if this rank owns no matrix
  /// that is normalized.
  NormuonMemory(Device& device, const OptimizerSettings& settings, const Plan& plan, int rank);

  /// Returns the states, indexed by matrix. A state has `neurons` = 0 if this rank does not
  /// normalize its matrix.
  const std::vector<NormuonState>& states() const { return states_; }

  /// Returns the f32 moments of all matrices of a parameter, ordered by expert, then by part.
  /// Moments of matrices that other ranks own remain zero. If this rank owns no matrix of the
  /// parameter, returns null.
  float* moments(int32_t param) const { return moments_[static_cast<size_t>(param)]; }
  int64_t neurons(int32_t param) const { return neurons_[static_cast<size_t>(param)]; }
  /// Returns the neurons of the matrices that this rank owns, as one range for each matrix.
  std::vector<StateRange> ranges(const Plan& plan, int32_t param) const;

 private:
  Buffer memory_;
  std::vector<NormuonState> states_;
  std::vector<float*> moments_;
  std::vector<int64_t> neurons_;
};

}  // namespace muonrt
