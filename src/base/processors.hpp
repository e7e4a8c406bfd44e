#pragma once

#include <cstdint>
#include <span>

namespace muonrt {

/// Describes the processors that the calling process may run on. The ranks exchange this struct as
/// raw bytes with allgather, so it must not have padding.
struct Processors {
  uint64_t machine = 0;  // identifies the machine; equal for all processes of one running kernel
  uint64_t mask = 0;     // hash of the affinity mask
  uint64_t group = 0;    // identifies the control group that sets the quota
  int32_t count = 1;     // number of processors in the mask, at least 1
  int32_t quota = 0;     // quota of the group in processors, rounded, at least 1; 0 means no quota
};

/// Returns the processors in the affinity mask of the calling thread, and the quota of its control
/// group. Values that the system does not report have the defaults above. Does not throw.
Processors own_processors() noexcept;

/// Returns the number of threads, from 1 to 256, that `rank` can run without sharing processors
/// with other ranks. Ranks on one machine with equal masks divide the processors of the mask, and
/// ranks in one control group divide the quota of the group.
int threads_of(std::span<const Processors> by_rank, int rank) noexcept;

}  // namespace muonrt
