#include "backend/cuda_comm.hpp"

namespace muonrt {

namespace {

[[noreturn]] void refuse(const char* what) {
  throw Error(Status::kNotSupported,
              cat(what,
                  ": there is no CUDA device (this build has no CUDA backend); configure with "
                  "-DMUONRT_CUDA=ON, or use a communicator of host memory"));
}

}  // namespace

int nccl_version() { refuse("NCCL"); }

std::unique_ptr<Comm> make_nccl_comm(std::unique_ptr<Bootstrap>, const NcclOptions&) {
  refuse("NCCL communicator");
}

std::unique_ptr<Comm> make_staged_comm(std::unique_ptr<Bootstrap>, int) {
  refuse("staged communicator");
}

}  // namespace muonrt
