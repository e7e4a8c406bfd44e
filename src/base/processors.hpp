#pragma once

#include <cstdint>
#include <span>

namespace muonrt {

/// The processors on which the calling process may run, as ranks tell each other. The bytes have no
/// padding and go through allgather as they are.
struct Processors {
  uint64_t machine = 0;  // equal for processes of one running kernel
  uint64_t mask = 0;     // hash of the affinity mask
  uint64_t group = 0;    // the control group that sets the quota
  int32_t count = 1;     // processors in the mask; >= 1
  int32_t quota = 0;     // the group's quota in processors, rounded, at least 1; 0: no quota
};

/// Returns the processors of the calling thread's affinity mask and of its control group. What the
/// system does not tell counts as a machine with one mask and without a quota. Does not throw.
Processors own_processors() noexcept;

/// Returns how many threads rank `rank` can run on processors of its own, 1 to 256: ranks of one
/// machine with equal masks share the processors of the mask, and those in one control group its
/// quota.
int threads_of(std::span<const Processors> by_rank, int rank) noexcept;

}  // namespace muonrt
