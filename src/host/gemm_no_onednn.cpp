#include "host/gemm_tile.hpp"

namespace muonrt::host {

// The build links this file instead of gemm_onednn.cpp if oneDNN is not installed.
const TileKernel* onednn_kernel() { return nullptr; }

}  // namespace muonrt::host
