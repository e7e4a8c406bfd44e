#pragma once

#include <memory>
#include <string>

#include "backend/bootstrap.hpp"

namespace muonrt {

/// Communicators of a GPU's memory; defined in cuda/, or in no_cuda_comm.cpp where that is not
/// built.

struct NcclOptions {
  int device_index = 0;
  int max_ctas = 8;         // thread blocks (SMs) of an operation at most; power of two
  std::string name;         // for NCCL's messages; empty: "muonrt"
  void* from = nullptr;     // the caller's ncclComm_t, over the bootstrap's ranks in order
  bool borrow = false;      // use `from` itself in place of one split off it; errors abort it
  int library_version = 0;  // of muonrt; must be equal
};

/// NCCL's version as it says it (22809 for 2.28.9). Errors: NOT_SUPPORTED without NCCL or in a
/// build without CUDA.
int nccl_version();

/// A communicator over NCCL. Collective over the bootstrap's ranks, which takes part in errors and
/// whatever is exchanged in host memory. Errors, on every rank: NOT_SUPPORTED where a rank has no
/// CUDA device, no NCCL or one that is too old; MISMATCH if versions or options differ; COMM;
/// TIMEOUT.
std::unique_ptr<Comm> make_nccl_comm(std::unique_ptr<Bootstrap> bootstrap,
                                     const NcclOptions& options);

/// A communicator over a bootstrap's own messages: what goes out is copied to pinned host memory,
/// what comes in from there; where receivers copy (ranks are threads of this process, or one alone)
/// from GPU memory to GPU memory. The enqueuing thread waits in each operation.
/// Collective. Errors, on every rank: NOT_SUPPORTED where a rank has no CUDA device.
std::unique_ptr<Comm> make_staged_comm(std::unique_ptr<Bootstrap> bootstrap, int device_index);

}  // namespace muonrt
