#pragma once

#include <cmath>
#include <cstdint>

#include "backend/scalars.hpp"
#include "backend/update_rules.hpp"

// NorMuon on a whole matrix; formulas and the order of sums, shared by every backend. A line is a
// row or a column of the matrix as it is stored. Source: Li et al. 2025 (arXiv 2510.05491) as in
// zichongli5/NorMuon.

namespace muonrt {

/// What the lines of a matrix are multiplied by.
enum class NeuronRule : int32_t {
  kNormuon,  // 1 / root of the line's second moment, and one factor that keeps the matrix's norm
  kEqual,    // the same with the line's own mean square: afterwards all lines have one norm (row
             // equilibration, arXiv 2603.28254); the matrix's norm times `target`
  kNorm,     // one factor for all: the matrix's norm becomes `target` (arXiv 2602.21545)
};

/// The lines of one matrix, and where their second moments are. `lines` f32 each.
struct NormuonState {
  float* moments = nullptr;  // committed; kNormuon only
  float* staged = nullptr;   // of this step; kNormuon only
  float* factors = nullptr;  // what each line is multiplied by
  int64_t neurons = 0;
  bool stored_rows = true;       // lines are rows of what is stored, else its columns
  int32_t param = 0, group = 0;  // kNormuon only
  NeuronRule rule = NeuronRule::kNormuon;
  float target = 1.0f;
};

/// Element i of a sum belongs to chain i mod kNeuronChains; the chains are halved down to one
/// value.
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
/// A line's own factor; the sums below bring the matrix's norm back.
MUONRT_HOST_DEVICE inline float normuon_neuron_factor(float moment) {
  return 1.0f / (sqrtf(moment) + kNormuonEps);
}
/// @param squares  sum of the lines' mean squares, and @param scaled  of those times the squares of
///     the lines' factors; `length` elements a line.
MUONRT_HOST_DEVICE inline float normuon_restore(double squares, double scaled, int64_t length) {
  const double n = static_cast<double>(length);
  return static_cast<float>(sqrt(n * squares) /
                            (sqrt(n * scaled) + static_cast<double>(kNormuonEps)));
}

/// The least norm that a matrix is divided by under NeuronRule::kNorm; as nanochat.
constexpr float kLeastNorm = 1e-6f;

/// A line's own factor by the rule of its matrix; a new second moment is staged.
MUONRT_HOST_DEVICE inline float neuron_factor(const NormuonState& s, int64_t line,
                                              float mean_square, float beta2) {
  if (s.rule == NeuronRule::kNorm) return 1.0f;
  if (s.rule == NeuronRule::kEqual) return normuon_neuron_factor(mean_square);
  const float moment = normuon_moment(s.moments[line], mean_square, beta2);
  s.staged[line] = moment;
  return normuon_neuron_factor(moment);
}
/// What all lines are multiplied by besides; arguments as of normuon_restore.
MUONRT_HOST_DEVICE inline float matrix_factor(const NormuonState& s, double squares, double scaled,
                                              int64_t length) {
  if (s.rule != NeuronRule::kNorm) return s.target * normuon_restore(squares, scaled, length);
  const float norm = static_cast<float>(sqrt(static_cast<double>(length) * squares));
  return s.target / (norm < kLeastNorm ? kLeastNorm : norm);
}

}  // namespace muonrt
