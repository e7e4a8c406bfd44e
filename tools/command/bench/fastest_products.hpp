#pragma once

#include <memory>

#include "backend/cuda_device.hpp"

namespace muonrt::tool {

/// Creates products for CudaSettings that use the fastest algorithm of cuBLASLt. Benchmarks compare
/// other products with them. When a batch is computed for the first time, all algorithms that
/// cuBLASLt proposes are timed on its operands, which are not in L2. These include algorithms that
/// split the depth. Later calls use the fastest one, so the rounding depends on the timing. The
/// first `multiply` of a batch blocks, for at most 20 s in each measurement. Errors: NOT_SUPPORTED
/// if no algorithm can compute a batch; TIMEOUT.
std::unique_ptr<cuda::VendorProducts> make_fastest_products(Device& device, int index);

}  // namespace muonrt::tool
