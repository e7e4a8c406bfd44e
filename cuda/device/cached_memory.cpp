#include "cuda/device/cached_memory.hpp"

#include <algorithm>
#include <mutex>
#include <utility>

#include "cuda/device/guard.hpp"

namespace muonrt::cuda {

/// The cache is never destroyed, because threads that wait for an abort may still use it during
/// `exit`.
struct CachedMemory::Cache {
  std::mutex mutex;
  // The key has two parts: the device, and whether the memory is pinned.
  std::map<std::pair<int, bool>, Blocks> idle;

  Blocks& of(int device, bool pinned) {
    const std::lock_guard lock(mutex);
    return idle[{device, pinned}];
  }
};

CachedMemory::Cache& CachedMemory::cache() {
  static Cache* const all = new Cache();
  return *all;
}

/// Returns whether the GPU is lost or has run all work that uses the block.
bool CachedMemory::Block::is_idle() const {
  return std::all_of(users.begin(), users.end(), [](const auto& event) {
    const bool waits = cudaEventQuery(event->handle()) == cudaErrorNotReady;
    cudaGetLastError();
    return !waits;
  });
}

CachedMemory::CachedMemory(int device, int64_t bytes, bool pinned)
    : idle_(cache().of(device, pinned)) {
  const DeviceGuard guard(device);
  const RelaxedCapture relaxed;
  {
    const std::lock_guard lock(cache().mutex);
    const auto end = idle_.upper_bound(2 * bytes);
    const auto found = std::find_if(idle_.lower_bound(bytes), end,
                                    [](const auto& entry) { return entry.second.is_idle(); });
    if (found != end) own_ = idle_.extract(found);
  }
  if (!own_) {
    Blocks made;
    made.emplace(bytes, Block{std::make_unique<RawMemory>(device, bytes, pinned), {}});
    own_ = made.extract(made.begin());
  }
  own_.mapped().users.clear();
}

CachedMemory::~CachedMemory() {
  const std::lock_guard lock(cache().mutex);
  idle_.insert(std::move(own_));
}

void CachedMemory::keep_until(std::shared_ptr<const CudaEvent> event) {
  if (event) own_.mapped().users.push_back(std::move(event));
}

}  // namespace muonrt::cuda
