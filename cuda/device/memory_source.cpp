#include "cuda/device/memory_source.hpp"

#include <vector>

#include "base/error.hpp"
#include "base/text.hpp"
#include "cuda/device/guard.hpp"

namespace muonrt::cuda {

MemorySource::MemorySource(int device, const Allocator& caller, bool stream_ordered,
                           const StreamList& streams)
    : device_(device), caller_(caller), streams_(streams) {
  if (!caller_.allocate && !stream_ordered) return;
  const DeviceGuard guard(device_);
  const RelaxedCapture relaxed;
  try {
    if (stream_ordered) make_pool();
    MUONRT_CUDA(cudaStreamCreateWithPriority(&order_, cudaStreamNonBlocking, 0));
  } catch (...) {
    end();
    throw;
  }
}

MemorySource::~MemorySource() {
  try {
    const DeviceGuard guard(device_);
    const RelaxedCapture relaxed;
    end();
  } catch (const Error&) {  // with its context the memory is gone
  }
}

void MemorySource::end() {
  if (order_) cudaStreamDestroy(order_);
  if (pool_)
    cudaMemPoolDestroy(pool_);  // what was given back goes as soon as the stream gets there
}

// Where ranks are threads of one process NCCL reads a peer's buffers in place, which memory of a
// pool does not allow by itself.
void MemorySource::make_pool() {
  int supported = 0;
  MUONRT_CUDA(cudaDeviceGetAttribute(&supported, cudaDevAttrMemoryPoolsSupported, device_));
  MUONRT_REQUIRE(supported, Status::kNotSupported, "options: stream_ordered is 1, but CUDA device ",
                 device_, " has no memory pools; leave it 0");
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location.type = cudaMemLocationTypeDevice;
  properties.location.id = device_;
  MUONRT_CUDA(cudaMemPoolCreate(&pool_, &properties));
  int count = 0;
  MUONRT_CUDA(cudaGetDeviceCount(&count));
  std::vector<cudaMemAccessDesc> peers;
  for (int peer = 0; peer < count; ++peer) {
    int reaches = 0;
    if (peer != device_) MUONRT_CUDA(cudaDeviceCanAccessPeer(&reaches, peer, device_));
    if (!reaches) continue;
    cudaMemAccessDesc access = {};
    access.location.type = cudaMemLocationTypeDevice;
    access.location.id = peer;
    access.flags = cudaMemAccessFlagsProtReadWrite;
    peers.push_back(access);
  }
  if (!peers.empty()) MUONRT_CUDA(cudaMemPoolSetAccess(pool_, peers.data(), peers.size()));
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
  MUONRT_REQUIRE(own, Status::kInvalidArgument, "options: allocator: allocate gave ", memory,
                 " for ", bytes, " bytes, which is no memory of CUDA device ", device_,
                 "; allocate on the device that it is told");
}

void* MemorySource::take(int64_t bytes) {
  void* memory = nullptr;
  if (!order_) {
    MUONRT_CUDA(cudaMalloc(&memory, static_cast<size_t>(bytes)));
    return memory;
  }
  if (caller_.allocate) {
    memory = caller_.take(bytes, device_, order_);
  } else {
    MUONRT_CUDA(cudaMallocFromPoolAsync(&memory, static_cast<size_t>(bytes), pool_, order_));
  }
  try {
    if (caller_.allocate) require_own(memory, bytes);
    MUONRT_CUDA(cudaStreamSynchronize(order_));
  } catch (...) {
    give_in_order(memory, bytes);
    throw;
  }
  return memory;
}

void MemorySource::give_in_order(void* memory, int64_t bytes) {
  if (caller_.release) {
    caller_.release(caller_.state, memory, bytes, device_, order_);
  } else {
    cudaFreeAsync(memory, order_);
  }
}

void MemorySource::give(void* memory, int64_t bytes) {
  if (!order_) {
    cudaFree(memory);
    return;
  }
  try {
    streams_.finish();
  } catch (const Error&) {  // a lost context runs nothing any more
  }
  give_in_order(memory, bytes);
}

}  // namespace muonrt::cuda
