#pragma once

#include <memory>

#include "backend/cuda_device.hpp"

namespace muonrt::tool {

/// Creates VendorProducts for CudaSettings. They use cuBLASLt's fastest algorithm, for comparison
/// in benchmarks. The first `multiply` of a batch measures all algorithms that cuBLASLt proposes,
/// on operands that are not in L2, and blocks for at most 20 s in each measurement. The algorithms
/// include those that split the inner dimension. Later calls use the fastest algorithm, so the
/// rounding depends on the measurement. Errors: NOT_SUPPORTED if no algorithm can compute a batch;
/// TIMEOUT.
std::unique_ptr<cuda::VendorProducts> make_fastest_products(Device& device, int index);

}  // namespace muonrt::tool
