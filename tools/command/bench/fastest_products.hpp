#pragma once

#include <memory>

#include "backend/cuda_device.hpp"

namespace muonrt::tool {

/// For CudaSettings: what cuBLASLt can do, for others to be measured against. Of each batch, where
/// it is first met, the algorithms that are proposed for just that one, its depth in parts if they
/// like, are timed on its operands, out of L2, and the fastest is taken from then on. Bits follow
/// from what was fastest. Its `multiply` waits there, each time for 20 s at most.
/// Errors of that: NOT_SUPPORTED if no algorithm computes a batch, TIMEOUT.
std::unique_ptr<cuda::VendorProducts> make_fastest_products(Device& device, int index);

}  // namespace muonrt::tool
