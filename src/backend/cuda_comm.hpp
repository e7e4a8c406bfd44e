#pragma once

#include <memory>
#include <string>

#include "backend/bootstrap.hpp"

namespace muonrt {

// Communicators of GPU memory. They are defined in cuda/, or in no_cuda_comm.cpp if the build has
// no CUDA backend.

struct NcclOptions {
  int device_index = 0;
  int max_ctas = 8;         // maximum thread blocks (SMs) of an operation; power of two
  std::string name;         // for NCCL's messages; empty: "muonrt"
  void* from = nullptr;     // the caller's ncclComm_t, over the bootstrap's ranks in order
  bool borrow = false;      // use `from` itself instead of splitting it; an error aborts it
  int library_version = 0;  // of muonrt; must be equal on all ranks
};

/// Returns NCCL's version number (22809 for 2.28.9). Errors: NOT_SUPPORTED without NCCL or in a
/// build without CUDA.
int nccl_version();

/// Creates a communicator over NCCL. Collective over the bootstrap's ranks. The communicator uses
/// the bootstrap for errors and for messages in host memory. Errors, on every rank: NOT_SUPPORTED
/// if a rank has no CUDA device, no NCCL, or a version of NCCL that is too old; MISMATCH if
/// versions or options differ; COMM; TIMEOUT.
std::unique_ptr<Comm> make_nccl_comm(std::unique_ptr<Bootstrap> bootstrap,
                                     const NcclOptions& options);

/// Creates a communicator that sends GPU memory as messages of the bootstrap, through copies in
/// pinned host memory. If the bootstrap's receivers copy (all ranks are in this process), messages
/// are copied from GPU memory to GPU memory. The enqueuing thread waits in each operation.
/// Collective. Errors, on every rank: NOT_SUPPORTED if a rank has no CUDA device.
std::unique_ptr<Comm> make_staged_comm(std::unique_ptr<Bootstrap> bootstrap, int device_index);

}  // namespace muonrt
