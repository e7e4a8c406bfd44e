#pragma once

#include "cuda/nccl/nccl_api.hpp"

namespace cuda_test {

/// Returns the real library, or null if it does not exist. Its versions and ids can be read without
/// a GPU or a driver.
inline const muonrt::cuda::NcclApi* real_nccl() {
  static const char* const kNames[] = {
      "libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2", "/usr/local/cuda/lib/libnccl.so.2",
      "/usr/lib/x86_64-linux-gnu/libnccl.so.2", "/usr/lib/aarch64-linux-gnu/libnccl.so.2"};
  static muonrt::cuda::NcclApi api;
  try {
    api = muonrt::cuda::load_nccl(kNames, 5);
    return &api;
  } catch (const muonrt::Error&) {
    return nullptr;
  }
}

}  // namespace cuda_test
