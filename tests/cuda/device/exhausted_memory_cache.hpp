#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "control.hpp"
#include "cuda/device/cached_memory.hpp"

namespace cuda_test {

/// While one lives, communicators on the first GPU get no memory that others have left before.
class ExhaustedMemoryCache {
 public:
  ExhaustedMemoryCache() {
    take(sizeof(int32_t), true);
    take(65536, false);
  }
  /// Takes what others have left since. @return  how many pieces: a communicator leaves two.
  int64_t left() { return take(sizeof(int32_t), true) + take(65536, false); }

 private:
  /// Until it is CUDA's. @return  how many were others'.
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
