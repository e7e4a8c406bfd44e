#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "cuda/device/cuda_device.hpp"
#include "cuda/device/raw_memory.hpp"

namespace muonrt::cuda {

/// Memory outside any Device whose owner may go while enqueued work uses it: a GPU's, or pinned. It
/// is kept for the next that asks, once that work has run, and never freed: cudaFree and
/// cudaFreeHost wait for all of a GPU's work, for a caller's stream that hangs and for peers, too.
/// Threads: one at a time.
class CachedMemory {
 public:
  /// At least `bytes` > 0, twice as much at most; its values are anything. The calling thread's
  /// captures are not disturbed. Errors: OUT_OF_MEMORY, DEVICE.
  CachedMemory(int device, int64_t bytes, bool pinned);
  /// Waits for nothing.
  ~CachedMemory();
  CachedMemory(const CachedMemory&) = delete;
  CachedMemory& operator=(const CachedMemory&) = delete;

  /// Nobody else gets it before the GPU has come to `event`, one of the same device.
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
  using Blocks = std::multimap<int64_t, Block>;  // by their bytes
  struct Cache;
  static Cache& stock();
  const Block& block() const { return own_.mapped(); }

  Blocks& idle_;           // of its kind, in the stock
  Blocks::node_type own_;  // returns there without fail
};

}  // namespace muonrt::cuda
