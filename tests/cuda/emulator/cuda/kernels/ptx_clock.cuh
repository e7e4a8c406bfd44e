#pragma once

#include <cstdint>

namespace muonrt::cuda {

/// Replaces the clock of the device with a number that grows with every read.
inline int64_t& emulated_clock() {
  static thread_local int64_t now = 0;
  return now;
}
inline int64_t global_timer() { return emulated_clock() += 1000; }

}  // namespace muonrt::cuda
