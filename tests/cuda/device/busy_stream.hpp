#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>

#include "cuda/device/driver_api.hpp"
#include "cuda/device/raw_memory.hpp"

namespace cuda_test {

/// A caller's stream on the first GPU. Its work does not end before end() is called. Calls that
/// free memory on this GPU wait for this work.
class BusyStream {
 public:
  BusyStream() {
    *word_.as<uint32_t>() = 0;
    MUONRT_CUDA(cudaStreamCreateWithPriority(&handle, cudaStreamNonBlocking, 0));
  }
  ~BusyStream() {
    end();
    cudaStreamDestroy(handle);
  }
  BusyStream(const BusyStream&) = delete;
  BusyStream& operator=(const BusyStream&) = delete;
  void work() {
    static const auto wait =
        muonrt::cuda::driver_function<decltype(&cuStreamWaitValue32)>("cuStreamWaitValue32");
    const auto word = reinterpret_cast<CUdeviceptr>(word_.data());
    MUONRT_CHECK_INTERNAL(wait(handle, word, 1, CU_STREAM_WAIT_VALUE_GEQ) == CUDA_SUCCESS,
                          "cuStreamWaitValue32");
  }
  void end() { std::atomic_ref(*word_.as<uint32_t>()).store(1); }
  bool has_ended() const { return std::atomic_ref(*word_.as<uint32_t>()).load() != 0; }

  cudaStream_t handle = nullptr;

 private:
  const muonrt::cuda::RawMemory word_{0, sizeof(uint32_t), true};
};

}  // namespace cuda_test
