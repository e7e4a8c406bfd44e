#pragma once

#include <cstdint>
#include <optional>

namespace muonrt {

/// Families of tiles of the symmetric products for compute capability 9.0.
enum class Tiles {
  kLarge,      // the mixed list, a persistent grid
  kMedium,     // 128 x 192, on such a grid
  kSmall,      // 64 x 64
  kSmallWide,  // 64 x 128, and 64 x 64 where that is all that is left of a row; 64 x 64 alone with
               // slices
};

/// How those products are launched where something is not to follow from the shapes: to find the
/// part of a kernel that is at fault, or slow. Results are right under every choice; `slices` alone
/// changes bits.
struct Sm90Tuning {
  std::optional<Tiles> tiles = {};  // medium ones become large where a depth is cut
  // Clusters of two blocks that copy half of B into both; unset: where a result is wider than
  // 1,280.
  std::optional<bool> pairs = {};
  bool early = true;   // programmatic launches, which begin before the one in front ends
  int slices = 0;      // that a depth is cut into, of one stage at least: 1, 2, 4; 0: by shape
  int64_t raster = 0;  // rows of tiles in a band, which is taken by columns; 0: by the family
};

}  // namespace muonrt
