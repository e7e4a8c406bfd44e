#pragma once

#include <cstdint>
#include <vector>

#include "backend/device.hpp"
#include "backend/normuon.hpp"
#include "optimizer/settings/settings.hpp"
#include "plan/plan.hpp"

namespace muonrt {

struct StateRange;

/// Lines of all matrices of a parameter. 0 where nothing is normalized.
int64_t normuon_neurons(const OptimizerSettings& settings, int32_t param);

/// Equal where the same lines of a parameter have moments, in the same order.
uint64_t normuon_digest(const OptimizerSettings& settings, int32_t param);

/// What a rank keeps that owns any matrix with such lines: three numbers for each line of all of
/// them (moments, staged moments, factors).
int64_t normuon_bytes(int64_t lines);

/// The second moments of NorMuon on one rank: those of the matrices that it owns.
class NormuonMemory {
 public:
  NormuonMemory() = default;
  /// Takes and clears them. Nothing is taken where no matrix here is normalized.
  NormuonMemory(Device& device, const OptimizerSettings& settings, const Plan& plan, int rank);

  /// By matrix; `lines` is 0 where there is nothing to do.
  const std::vector<NormuonState>& states() const { return states_; }

  /// The moments of a parameter's matrices one after the other, in their order (expert by expert,
  /// part by part); f32, those of matrices that other ranks own stay zero. Null where this rank
  /// owns none.
  float* moments(int32_t param) const { return moments_[static_cast<size_t>(param)]; }
  int64_t neurons(int32_t param) const { return lines_[static_cast<size_t>(param)]; }
  /// The lines among them that are this rank's, matrix by matrix.
  std::vector<StateRange> blocks(const Plan& plan, int32_t param) const;

 private:
  Buffer memory_;
  std::vector<NormuonState> states_;
  std::vector<float*> moments_;
  std::vector<int64_t> lines_;
};

}  // namespace muonrt
