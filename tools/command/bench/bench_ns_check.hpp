#pragma once

#include <vector>

#include "command/bench/bench_device.hpp"

namespace muonrt::tool {

/// Counts errors in orthogonalized batches, by the images W O of 16 random directions for every
/// matrix O, which the device computes in portable loops:
///
/// * elements that are not finite, such as those of a tile that was never stored, and in the other
///   matrices:
/// * matrices that are not nearly orthogonal. All singular values except the smallest are in [0.5,
///   1.3], and so is |W O| / |W|;
/// * groups of 32 columns whose images differ from those of the first results, which are another
///   provider's, by more than rounding errors. If O has 8192 rows, one wrong tile of 128 x 128
///   changes the images of its columns by 18%.
class NsCheck {
 public:
  bool has_seen() const { return !first_.empty(); }
  /// @param results  of the same work each time.
  int64_t wrong(Workbench& bench, const std::vector<MatrixBatch>& results);

 private:
  std::vector<std::vector<float>> first_;  // images by batch: matrix, direction, column
};

}  // namespace muonrt::tool
