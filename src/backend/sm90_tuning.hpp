#pragma once

#include <cstdint>
#include <optional>

namespace muonrt {

/// The choices of tile sizes for symmetric products on compute capability 9.0.
enum class Tiles {
  kLarge,      // a list of different tile sizes, in a persistent grid
  kMedium,     // 128 x 192, in a persistent grid
  kSmall,      // 64 x 64
  kSmallWide,  // 64 x 128, and 64 x 64 at the end of a row; with slices only 64 x 64
};

/// Overrides for launch parameters that normally follow from the shapes. They help to find a slow
/// or incorrect part of a kernel. Results are correct with every choice; only `slices` and `dense`
/// change them bitwise.
struct Sm90Tuning {
  std::optional<Tiles> tiles = {};  // kMedium becomes kLarge if there is more than one slice
  // If true, thread blocks form clusters of two, and each block copies half of B for both. By
  // default, clusters are used if a result has more than 1,280 columns.
  std::optional<bool> pairs = {};
  bool early = true;  // programmatic launches, which start before the previous kernel is complete
  int slices = 0;     // number of slices of the depth: 1, 2, 4, or 0 to select by shape
  // Number of stages (at most 3) by which the second consumer warpgroup of a persistent grid starts
  // later, so that one consumer multiplies while the other rounds. The effect was not measured.
  int skew = 0;
  // If true, muonrt's kernel also computes the dense products a X + B X, instead of cuBLASLt. The
  // effect was not measured.
  bool dense = false;
  // If true, thread blocks take large tiles from a counter, so a faster block computes more tiles.
  // Applies to symmetric lists without pairs. Products must then run on a single stream. The effect
  // was not measured.
  bool counter = false;
  int64_t raster = 0;  // rows of tiles in a band, which is computed column by column; 0: default
};

}  // namespace muonrt
