#pragma once

#include "muonrt/bench_device.hpp"

namespace muonrt::tool {

/// Elements of all results that are not finite, and directions in which results are not near
/// orthogonal: their singular values lie in [0.5, 1.3],
/// so |O^T v| / |v| does. Of each batch up to 8 directions for each of up to four matrices, the
/// first and the last among them; fewer where the elements looked at would be more than 2^30 in
/// all, but at least 2 of one matrix.
/// @param zeros  of zeros results are zeros: directions whose image is none.
int64_t wrong_directions(Workbench& bench, const std::vector<MatrixBatch>& results,
                         bool zeros = false);

}  // namespace muonrt::tool
