#pragma once

#include <vector>

#include "command/bench/bench_device.hpp"

namespace muonrt::tool {

/// Counts errors in orthogonalized batches. For every matrix O, the device multiplies 16 random
/// directions W by O with portable loops. The products W O are called images. These are errors:
///
/// * non-finite elements, for example in a tile that was never stored;
/// * finite matrices that are not nearly orthogonal. All singular values except the smallest should
///   be in [0.5, 1.3], so |W O| / |W| must be in this range;
/// * groups of 32 columns whose images differ by more than rounding errors from those of the first
///   call, whose results another provider has computed. Even if O has 8192 rows, one wrong tile of
///   128 x 128 changes the images of its columns by 18%.
class NsCheck {
 public:
  bool has_seen() const { return !first_.empty(); }
  /// @param results  must be results of the same work in each call.
  int64_t wrong(Workbench& bench, const std::vector<MatrixBatch>& results);

 private:
  std::vector<std::vector<float>> first_;  // images of each batch, by matrix, direction and column
};

}  // namespace muonrt::tool
