#include "host/gemm_tile.hpp"

namespace muonrt::host {

// This file is linked instead of gemm_onednn.cpp if oneDNN is not installed.
const TileKernel* onednn_kernel() { return nullptr; }

}  // namespace muonrt::host
