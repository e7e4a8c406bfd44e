#pragma once

#include <cmath>
#include <cstdint>

#include "backend/scalars.hpp"
#include "backend/update_rules.hpp"

// NorMuon on a whole matrix; formulas and the order of sums, shared by every backend. A line is a
// row or a column of the matrix as it is stored. Source: Li et al. 2025 (arXiv 2510.05491) as in
// zichongli5/NorMuon.

namespace muonrt {

/// Where the second moments of one matrix are. `lines` f32 each.
struct NormuonState {
  float* moments = nullptr;  // committed
  float* staged = nullptr;   // of this step
  float* factors = nullptr;  // what each line is multiplied by
  int64_t lines = 0;
  bool stored_rows = true;  // lines are rows of what is stored, else its columns
  int32_t param = 0, group = 0;
};

/// Element i of a sum belongs to chain i mod kLineChains; the chains are halved down to one value.
constexpr int kLineChains = 32;
template <class T>
MUONRT_HOST_DEVICE inline T fold_chains(T* chains) {
  for (int half = kLineChains / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) chains[i] += chains[i + half];
  return chains[0];
}

constexpr float kNormuonEps = 1e-10f;

MUONRT_HOST_DEVICE inline float normuon_moment(float moment, float mean_square, float beta2) {
  return at_rest(beta2 * moment + (1.0f - beta2) * mean_square, mean_square);
}
/// A line's own factor; the sums below bring the matrix's norm back.
MUONRT_HOST_DEVICE inline float normuon_line_factor(float moment) {
  return 1.0f / (sqrtf(moment) + kNormuonEps);
}
/// @param squares  sum of the lines' mean squares, and @param scaled  of those times the squares of
///     the lines' factors; `length` elements a line.
MUONRT_HOST_DEVICE inline float normuon_restore(double squares, double scaled, int64_t length) {
  const double n = static_cast<double>(length);
  return static_cast<float>(sqrt(n * squares) /
                            (sqrt(n * scaled) + static_cast<double>(kNormuonEps)));
}

}  // namespace muonrt
