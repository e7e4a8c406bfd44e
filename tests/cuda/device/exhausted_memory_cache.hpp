#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "control.hpp"
#include "cuda/device/cached_memory.hpp"

namespace cuda_test {

/// While an object of this class exists, communicators on the first GPU cannot reuse memory that
/// was cached before the object was constructed.
class ExhaustedMemoryCache {
 public:
  ExhaustedMemoryCache() {
    take(sizeof(int32_t), true);
    take(65536, false);
  }
  /// Allocates all blocks that have been cached since this object was constructed.
  /// @return  the number of these blocks; a communicator leaves two.
  int64_t left() { return take(sizeof(int32_t), true) + take(65536, false); }

 private:
  /// Allocates blocks until the cache is empty.
  /// @return  the number of cached blocks.
  int64_t take(int64_t bytes, bool pinned) {
    const int64_t calls = emulator::slow_calls();
    int64_t count = -1;
    for (; emulator::slow_calls() == calls; ++count)
      taken_.push_back(std::make_unique<muonrt::cuda::CachedMemory>(0, bytes, pinned));
    return count;
  }
  std::vector<std::unique_ptr<muonrt::cuda::CachedMemory>> taken_;
};

}  // namespace cuda_test
