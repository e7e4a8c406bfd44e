#include "backend/cuda_comm.hpp"

namespace muonrt {

namespace {

[[noreturn]] void reject(const char* what) {
  throw Error(Status::kNotSupported,
              cat(what,
                  ": there is no CUDA device, because this build has no CUDA backend; configure "
                  "with -DMUONRT_CUDA=ON, or use a communicator of host memory"));
}

}  // namespace

int nccl_version() { reject("NCCL"); }

std::unique_ptr<Comm> make_nccl_comm(std::unique_ptr<Bootstrap>, const NcclOptions&) {
  reject("NCCL communicator");
}

std::unique_ptr<Comm> make_staged_comm(std::unique_ptr<Bootstrap>, int) {
  reject("staged communicator");
}

}  // namespace muonrt
