#pragma once

#include <memory>

#include "backend/bootstrap.hpp"
#include "backend/cuda_comm.hpp"
#include "cuda/nccl/nccl_api.hpp"

namespace muonrt::cuda {

/// Like muonrt::make_nccl_comm, but with a given table of functions.
std::unique_ptr<Comm> make_nccl_comm(const NcclApi& (*api)(), std::unique_ptr<Bootstrap> bootstrap,
                                     const NcclOptions& options);

}  // namespace muonrt::cuda
