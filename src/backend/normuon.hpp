#pragma once

#include <cmath>
#include <cstdint>

#include "backend/scalars.hpp"
#include "backend/update_rules.hpp"

// NorMuon on a whole matrix. All backends share these formulas and the order of the sums. A neuron
// is a row or a column of the stored matrix. Source: Li et al. 2025 (arXiv 2510.05491), as
// implemented in zichongli5/NorMuon.

namespace muonrt {

/// Selects how the neurons of a matrix are scaled.
enum class NeuronRule : int32_t {
  /// Divides each neuron by the square root of its second moment, and then multiplies all neurons
  /// by one factor that restores the norm of the matrix.
  kNormuon,
  /// Like kNormuon, but with the neuron's mean square instead of its second moment, so all neurons
  /// get the same norm (row equilibration, arXiv 2603.28254). The norm of the matrix is also
  /// multiplied by `target`.
  kEqual,
  /// Multiplies all neurons by one factor, so that the norm of the matrix becomes `target` (arXiv
  /// 2602.21545).
  kNorm,
};

/// The neurons of one matrix and their second moments. Each array has `neurons` f32 elements.
struct NormuonState {
  float* moments = nullptr;  // committed second moments; only for kNormuon
  float* staged = nullptr;   // new second moments of this step; only for kNormuon
  float* factors = nullptr;  // the factor of each neuron
  int64_t neurons = 0;
  bool stored_rows = true;       // true if neurons are rows of the stored matrix
  int32_t param = 0, group = 0;  // used only for kNormuon
  NeuronRule rule = NeuronRule::kNormuon;
  float target = 1.0f;
};

/// Number of partial sums from which a sum is computed. Element i is added to partial sum i mod
/// kNeuronChains. Then the upper half of the partial sums is added to the lower half until one
/// value is left.
constexpr int kNeuronChains = 32;
template <class T>
MUONRT_HOST_DEVICE inline T fold_chains(T* chains) {
  for (int half = kNeuronChains / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) chains[i] += chains[i + half];
  return chains[0];
}

constexpr float kNormuonEps = 1e-10f;

MUONRT_HOST_DEVICE inline float normuon_moment(float moment, float mean_square, float beta2) {
  return at_rest(beta2 * moment + (1.0f - beta2) * mean_square, mean_square);
}
/// Returns the factor of one neuron. The caller also multiplies the neuron by normuon_restore().
MUONRT_HOST_DEVICE inline float normuon_neuron_factor(float moment) {
  return 1.0f / (sqrtf(moment) + kNormuonEps);
}
/// Returns the factor for all neurons that restores the norm of the matrix.
/// @param squares  the sum of the neurons' mean squares.
/// @param scaled   the sum of the neurons' mean squares, each times the square of the neuron's
///     factor.
/// @param length   the number of elements of a neuron.
MUONRT_HOST_DEVICE inline float normuon_restore(double squares, double scaled, int64_t length) {
  const double n = static_cast<double>(length);
  return static_cast<float>(sqrt(n * squares) /
                            (sqrt(n * scaled) + static_cast<double>(kNormuonEps)));
}

/// The smallest norm that NeuronRule::kNorm divides by. nanochat uses the same value.
constexpr float kLeastNorm = 1e-6f;

/// Returns the factor of one neuron according to the rule of its matrix, not including
/// matrix_factor(). For kNormuon, also stores the new second moment in `staged`.
MUONRT_HOST_DEVICE inline float neuron_factor(const NormuonState& s, int64_t neuron,
                                              float mean_square, float beta2) {
  if (s.rule == NeuronRule::kNorm) return 1.0f;
  if (s.rule == NeuronRule::kEqual) return normuon_neuron_factor(mean_square);
  const float moment = normuon_moment(s.moments[neuron], mean_square, beta2);
  s.staged[neuron] = moment;
  return normuon_neuron_factor(moment);
}
/// Returns the factor that multiplies all neurons of a matrix, in addition to neuron_factor(). The
/// arguments have the same meaning as in normuon_restore().
MUONRT_HOST_DEVICE inline float matrix_factor(const NormuonState& s, double squares, double scaled,
                                              int64_t length) {
  if (s.rule != NeuronRule::kNorm) return s.target * normuon_restore(squares, scaled, length);
  const float norm = static_cast<float>(sqrt(static_cast<double>(length) * squares));
  return s.target / (norm < kLeastNorm ? kLeastNorm : norm);
}

}  // namespace muonrt
