#pragma once

#include <memory>

#include "backend/cuda_device.hpp"

namespace muonrt::tool {

/// Products for CudaSettings with the fastest algorithm of cuBLASLt, with which others are
/// compared. When a batch is computed for the first time, all algorithms that cuBLASLt proposes for
/// it, including those that split the depth, are timed on its operands, which are not in L2. The
/// fastest one is used from then on, so rounding depends on the timing. This first `multiply`
/// blocks, for at most 20 s in each measurement. Errors: NOT_SUPPORTED if no algorithm computes a
/// batch; TIMEOUT.
std::unique_ptr<cuda::VendorProducts> make_fastest_products(Device& device, int index);

}  // namespace muonrt::tool
