#pragma once

#include <cstdint>

namespace muonrt::cuda {

/// Returns the device's clock in nanoseconds. On some devices, the clock advances in steps of about
/// a microsecond.
__device__ inline int64_t global_timer() {
  int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

}  // namespace muonrt::cuda
