#pragma once

#include <cstdint>

namespace muonrt {

/// What the orthogonalized update is multiplied by, besides the rate. Values are public.
/// Sources: by value; names as in torch.optim.Muon and microsoft/dion.
enum class ScaleRule : int32_t {
  kMatchRms = 0,  // 0.2 sqrt(max(rows, cols)): the update has AdamW's RMS (Moonlight)
  kOriginal = 1,  // sqrt(max(1, rows / cols)) (Keller Jordan)
  kRatio = 2,     // sqrt(rows / cols): unit spectral norm between RMS-normed spaces
  kMaxDim = 3,    // sqrt(max(rows, cols))
  kNone = 4,      // 1
};

/// factor x rule(rows, cols).
/// @param rows, cols  of the GLOBAL matrix (or of the block that is orthogonalized by itself), rows
///                    = outputs; a shard's shape would make the rate depend on the mesh.
/// @return  0 for an empty matrix.
/// Errors: INVALID_ARGUMENT for an unknown rule, a negative size, a factor that is not finite.
double update_scale(ScaleRule rule, double factor, int64_t rows, int64_t cols);

}  // namespace muonrt
