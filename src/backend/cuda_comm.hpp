#pragma once

#include <memory>
#include <string>

#include "backend/bootstrap.hpp"

namespace muonrt {

// Communicators for GPU memory, which are implemented in cuda/. In a build without the CUDA
// backend, no_cuda_comm.cpp defines these functions instead.

struct NcclOptions {
  int device_index = 0;
  int max_ctas = 8;  // maximum number of thread blocks (SMs) of an operation; a power of two
  std::string name;  // name in NCCL's messages; empty means "muonrt"
  /// The caller's ncclComm_t. Its ranks must be the ranks of the bootstrap, in the same order.
  void* from = nullptr;
  bool borrow = false;      // use `from` itself instead of splitting it; an error then aborts it
  int library_version = 0;  // muonrt's version, which must be equal on all ranks
};

/// Returns NCCL's version as a number, such as 22809 for 2.28.9. Errors: NOT_SUPPORTED if NCCL is
/// not installed or the build has no CUDA backend.
int nccl_version();

/// Creates a communicator over NCCL. Collective over the bootstrap's ranks. The communicator uses
/// the bootstrap for errors and for messages in host memory. All ranks throw the same error:
/// NOT_SUPPORTED if a rank has no CUDA device, no NCCL, or a version of NCCL that is too old;
/// MISMATCH if versions or options differ; COMM; TIMEOUT.
std::unique_ptr<Comm> make_nccl_comm(std::unique_ptr<Bootstrap> bootstrap,
                                     const NcclOptions& options);

/// Creates a communicator that copies messages from GPU memory to pinned host memory and sends them
/// with the bootstrap. If all ranks are in this process, messages are instead copied directly
/// between GPU buffers. Each operation blocks the enqueuing thread. Collective. All ranks throw the
/// same error: NOT_SUPPORTED if a rank has no CUDA device.
std::unique_ptr<Comm> make_staged_comm(std::unique_ptr<Bootstrap> bootstrap, int device_index);

}  // namespace muonrt
