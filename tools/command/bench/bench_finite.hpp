#pragma once

#include "command/bench/bench_device.hpp"

namespace muonrt::tool {

/// Elements of all matrices that are infinite or NaN, such as those of a tile that was never stored
/// into memory that held NaN. What lies between rows and matrices is not looked at.
int64_t not_finite(Workbench& bench, const MatrixBatch& m);

}  // namespace muonrt::tool
