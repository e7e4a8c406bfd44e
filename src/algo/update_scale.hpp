#pragma once

#include <cstdint>

namespace muonrt {

/// The factor of the orthogonalized update, in addition to the learning rate. Values are public.
/// Sources: at each value; names as in torch.optim.Muon and microsoft/dion.
enum class ScaleRule : int32_t {
  kMatchRms = 0,  // 0.2 sqrt(max(rows, cols)): the update has AdamW's RMS (Moonlight)
  kOriginal = 1,  // sqrt(max(1, rows / cols)) (Keller Jordan)
  kRatio = 2,     // sqrt(rows / cols): unit spectral norm between RMS-normed spaces
  kMaxDim = 3,    // sqrt(max(rows, cols))
  kNone = 4,      // 1
};

/// Returns factor x rule(rows, cols).
/// @param rows, cols  shape of the global matrix, or of a separately orthogonalized block; rows are
///     outputs. With the shape of a shard, the update would depend on the mesh.
/// @return  0 for an empty matrix.
/// Errors: INVALID_ARGUMENT for an unknown rule, a negative size, a factor that is not finite.
double update_scale(ScaleRule rule, double factor, int64_t rows, int64_t cols);

}  // namespace muonrt
