#include "cuda/device/memory_source.hpp"

#include "base/error.hpp"
#include "base/text.hpp"
#include "cuda/device/guard.hpp"

namespace muonrt::cuda {

MemorySource::MemorySource(int device, const Allocator& caller, const StreamList& streams)
    : device_(device), caller_(caller), streams_(streams) {
  if (!caller_.allocate) return;
  const DeviceGuard guard(device_);
  const RelaxedCapture relaxed;
  MUONRT_CUDA(cudaStreamCreateWithPriority(&order_, cudaStreamNonBlocking, 0));
}

MemorySource::~MemorySource() {
  if (!order_) return;
  try {
    const DeviceGuard guard(device_);
    const RelaxedCapture relaxed;
    cudaStreamDestroy(order_);
  } catch (const Error&) {  // the memory was already freed with the context
  }
}

void MemorySource::require_own(const void* memory, int64_t bytes) const {
  cudaPointerAttributes at = {};
  const cudaError_t result = cudaPointerGetAttributes(&at, memory);
  if (result == cudaErrorInvalidValue) {
    cudaGetLastError();
  } else {
    check(result, "cudaPointerGetAttributes", __func__, __LINE__);
  }
  const bool own = result == cudaSuccess && at.device == device_ &&
                   (at.type == cudaMemoryTypeDevice || at.type == cudaMemoryTypeManaged);
  MUONRT_REQUIRE(own, Status::kInvalidArgument, "options: allocator: allocate returned ", memory,
                 " for ", bytes, " bytes, which is no memory of CUDA device ", device_,
                 "; allocate on the device whose index it receives");
}

void* MemorySource::allocate(int64_t bytes) {
  void* memory = nullptr;
  if (!order_) {
    MUONRT_CUDA(cudaMalloc(&memory, static_cast<size_t>(bytes)));
    return memory;
  }
  memory = caller_.take(bytes, device_, order_);
  try {
    require_own(memory, bytes);
    MUONRT_CUDA(cudaStreamSynchronize(order_));
  } catch (...) {
    caller_.release(caller_.state, memory, bytes, device_, order_);
    throw;
  }
  return memory;
}

void MemorySource::release(void* memory, int64_t bytes) {
  if (!order_) {
    cudaFree(memory);
    return;
  }
  try {
    streams_.finish();
  } catch (const Error&) {  // a lost context runs no work
  }
  caller_.release(caller_.state, memory, bytes, device_, order_);
}

}  // namespace muonrt::cuda
