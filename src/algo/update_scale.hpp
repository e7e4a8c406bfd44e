#pragma once

#include <cstdint>

namespace muonrt {

/// The rule for the factor by which the learning rate of an orthogonalized update is multiplied.
/// The values are part of the C ABI. Each value states its source; torch.optim.Muon and
/// microsoft/dion use the same names.
enum class ScaleRule : int32_t {
  kMatchRms = 0,  // 0.2 sqrt(max(rows, cols)): the update has AdamW's RMS (Moonlight)
  kOriginal = 1,  // sqrt(max(1, rows / cols)) (Keller Jordan)
  kRatio = 2,     // sqrt(rows / cols): unit spectral norm between spaces with the RMS norm
  kMaxDim = 3,    // sqrt(max(rows, cols))
  kNone = 4,      // 1
};

/// Returns factor x rule(rows, cols).
/// @param rows, cols  Shape of the global matrix, or of a block that is orthogonalized separately;
///     rows are outputs. Do not pass the shape of a shard: the update would then depend on the
///     mesh.
/// @return  The scale, or 0 for an empty matrix.
/// Errors: INVALID_ARGUMENT if the rule is unknown, a size is negative, or the factor is not
/// finite.
double update_scale(ScaleRule rule, double factor, int64_t rows, int64_t cols);

}  // namespace muonrt
