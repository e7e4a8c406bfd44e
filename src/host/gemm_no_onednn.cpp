#include "host/gemm_tile.hpp"

namespace muonrt::host {

// Linked in place of gemm_onednn.cpp where the library is absent.
const TileKernel* onednn_kernel() { return nullptr; }

}  // namespace muonrt::host
