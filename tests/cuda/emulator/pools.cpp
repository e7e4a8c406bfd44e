// Memory in the order of streams.

#include <memory>

#include "control.hpp"
#include "machine.hpp"

namespace emulator {

struct Pool {
  int device = 0;
  unsigned reach = 0;  // peers that may use its memory, a bit for each
};

namespace {

// Of all pools.
struct InPools {
  int64_t pools = 0, blocks = 0;
};
InPools in_pools;

}  // namespace

int64_t pool_blocks() {
  const Lock lock;
  return in_pools.blocks;
}
int64_t pools() {
  const Lock lock;
  return in_pools.pools;
}

}  // namespace emulator

using namespace emulator;

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  *can = device != peer;
  return cudaSuccess;
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* properties) {
  const Lock lock;
  if (properties->allocType != cudaMemAllocationTypePinned ||
      properties->location.type != cudaMemLocationTypeDevice || properties->location.id >= kDevices)
    return result(cudaErrorInvalidValue);
  if (!may_wait()) return result(cudaErrorStreamCaptureUnsupported);
  ++machine().slow_calls;
  ++in_pools.pools;
  *pool = new Pool{properties->location.id};
  return cudaSuccess;
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* access,
                                 size_t count) {
  const Lock lock;
  if (!may_wait()) return result(cudaErrorStreamCaptureUnsupported);
  for (size_t i = 0; i < count; ++i) {
    const cudaMemAccessDesc& a = access[i];
    if (a.location.type != cudaMemLocationTypeDevice || a.location.id == pool->device)
      return result(cudaErrorInvalidDevice);
    if (a.flags == cudaMemAccessFlagsProtReadWrite) pool->reach |= 1u << a.location.id;
  }
  return cudaSuccess;
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  const Lock lock;
  if (!may_wait()) return result(cudaErrorStreamCaptureUnsupported);
  --in_pools.pools;
  delete pool;
  return cudaSuccess;
}

// The address is known at once; the memory is there when the stream gets there.
cudaError_t cudaMallocFromPoolAsync(void** memory, size_t bytes, cudaMemPool_t pool,
                                    cudaStream_t stream) {
  const Lock lock;
  Stream& s = of(stream);
  if (s.device != pool->device) return result(cudaErrorInvalidResourceHandle);
  if (s.capture) return result(cudaErrorStreamCaptureUnsupported);  // not emulated
  ++machine().slow_calls;
  *memory = take_memory(bytes, pool->device, false);
  if (!*memory) return result(cudaErrorMemoryAllocation);
  ++in_pools.blocks;
  append(s, [] { return true; });
  return cudaSuccess;
}
// Waits for its stream alone: work elsewhere that still uses the memory meets a page that is gone.
cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  const Lock lock;
  Stream& s = of(stream);
  if (s.capture) return result(cudaErrorStreamCaptureUnsupported);  // not emulated
  if (!find_memory(memory)) return result(cudaErrorInvalidValue);
  append(s, [memory] {
    --in_pools.blocks;
    give_memory(memory);
    return true;
  });
  return cudaSuccess;
}
