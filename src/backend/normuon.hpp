#pragma once

#include <cmath>
#include <cstdint>

#include "backend/scalars.hpp"
#include "backend/update_rules.hpp"

// NorMuon on a whole matrix: the formulas and the order of sums, shared by all backends. A neuron
// is a row or a column of the stored matrix. Source: Li et al. 2025 (arXiv 2510.05491), as
// implemented in zichongli5/NorMuon.

namespace muonrt {

/// How the factors of a matrix's neurons are computed.
enum class NeuronRule : int32_t {
  kNormuon,  // 1 / root of the neuron's second moment, then one factor that restores the norm of
             // the matrix
  kEqual,    // as kNormuon with the neuron's mean square instead of the moment, so all neurons get
             // the same norm (row equilibration, arXiv 2603.28254), and the norm of the matrix is
             // multiplied by `target`
  kNorm,     // one factor for all neurons: the norm of the matrix becomes `target` (arXiv
             // 2602.21545)
};

/// The neurons of one matrix and their second moments. Each array has `neurons` f32 elements.
struct NormuonState {
  float* moments = nullptr;  // committed; kNormuon only
  float* staged = nullptr;   // new moments of this step; kNormuon only
  float* factors = nullptr;  // the factor of each neuron
  int64_t neurons = 0;
  bool stored_rows = true;       // true: neurons are rows of the stored matrix; false: columns
  int32_t param = 0, group = 0;  // kNormuon only
  NeuronRule rule = NeuronRule::kNormuon;
  float target = 1.0f;
};

/// Number of chains of a sum: element i belongs to chain i mod kNeuronChains, and the chains are
/// added in halves until one value is left.
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
/// Returns the factor of one neuron, before normuon_restore.
MUONRT_HOST_DEVICE inline float normuon_neuron_factor(float moment) {
  return 1.0f / (sqrtf(moment) + kNormuonEps);
}
/// Returns the factor for all neurons that restores the norm of the matrix.
/// @param squares  sum of the neurons' mean squares.
/// @param scaled   sum of the neurons' mean squares times their squared factors.
/// @param length   elements of a neuron.
MUONRT_HOST_DEVICE inline float normuon_restore(double squares, double scaled, int64_t length) {
  const double n = static_cast<double>(length);
  return static_cast<float>(sqrt(n * squares) /
                            (sqrt(n * scaled) + static_cast<double>(kNormuonEps)));
}

/// NeuronRule::kNorm divides by at least this norm, like nanochat.
constexpr float kLeastNorm = 1e-6f;

/// Returns the factor of one neuron by the rule of its matrix, before matrix_factor. kNormuon also
/// stages the new second moment.
MUONRT_HOST_DEVICE inline float neuron_factor(const NormuonState& s, int64_t neuron,
                                              float mean_square, float beta2) {
  if (s.rule == NeuronRule::kNorm) return 1.0f;
  if (s.rule == NeuronRule::kEqual) return normuon_neuron_factor(mean_square);
  const float moment = normuon_moment(s.moments[neuron], mean_square, beta2);
  s.staged[neuron] = moment;
  return normuon_neuron_factor(moment);
}
/// Returns the additional factor of all neurons of a matrix. Arguments: as normuon_restore.
MUONRT_HOST_DEVICE inline float matrix_factor(const NormuonState& s, double squares, double scaled,
                                              int64_t length) {
  if (s.rule != NeuronRule::kNorm) return s.target * normuon_restore(squares, scaled, length);
  const float norm = static_cast<float>(sqrt(static_cast<double>(length) * squares));
  return s.target / (norm < kLeastNorm ? kLeastNorm : norm);
}

}  // namespace muonrt
