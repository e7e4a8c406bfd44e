#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "cuda/device/cuda_device.hpp"
#include "cuda/device/raw_memory.hpp"

namespace muonrt::cuda {

/// GPU memory or pinned memory that belongs to no Device. The object may be destroyed while
/// enqueued work still uses the memory. After that work has run, the block can be reused. The block
/// is never freed, because cudaFree and cudaFreeHost wait for all work on a GPU. This work may
/// include a caller's stream that hangs, or work that waits for peers. Threads: one at a time.
class CachedMemory {
 public:
  /// Allocates uninitialized memory: at least `bytes`, which must be above 0, and at most twice as
  /// much. Does not invalidate captures of the calling thread. Errors: OUT_OF_MEMORY, DEVICE.
  CachedMemory(int device, int64_t bytes, bool pinned);
  /// Returns the block to the cache without waiting.
  ~CachedMemory();
  CachedMemory(const CachedMemory&) = delete;
  CachedMemory& operator=(const CachedMemory&) = delete;

  /// Prevents the block from being reused before the GPU has reached `event`, which must be an
  /// event of the same device.
  void keep_until(std::shared_ptr<const CudaEvent> event);

  void* data() const { return block().memory->data(); }
  template <class T>
  T* as() const {
    return static_cast<T*>(data());
  }
  int64_t bytes() const { return block().memory->bytes(); }

 private:
  struct Block {
    std::unique_ptr<RawMemory> memory;
    std::vector<std::shared_ptr<const CudaEvent>> users;
    bool is_idle() const;
  };
  using Blocks = std::multimap<int64_t, Block>;  // the key is the size in bytes
  struct Cache;
  static Cache& cache();
  const Block& block() const { return own_.mapped(); }

  Blocks& idle_;           // the cached blocks of this kind
  Blocks::node_type own_;  // can be returned to `idle_` without an allocation
};

}  // namespace muonrt::cuda
