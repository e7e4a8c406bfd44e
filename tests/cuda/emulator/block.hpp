#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "cuda_runtime.h"

namespace emulator {

/// Blocks that run side by side and reach each other's dynamic shared memory.
struct Cluster {
  std::vector<uint3> blocks;  // their indices
  dim3 grid, threads;
  size_t shared_bytes = 0;  // of each block
  bool early = false;       // its launch may begin before the one in front of it has ended
};

/// Runs a cluster: `thread` once for each of its threads, which take turns. Throws what a thread
/// does, and std::logic_error where they wait for what can no longer come.
void run_cluster(const std::function<void()>& thread, const Cluster& cluster);

// For the stand-ins of instructions; called by a running thread.

/// Its place among all threads of the cluster, how many those are, and its block's in the cluster.
size_t thread_in_cluster();
size_t threads_in_cluster();
unsigned block_in_cluster();
/// Number of the cluster, among those that this processor has run.
uint64_t cluster_number();
/// Dynamic shared memory of a block of the cluster; garbage at first.
unsigned char* shared_memory(unsigned block);
/// Bytes of it.
size_t shared_bytes();

/// Whether a thread of the block has not ended: else nobody may reach its shared memory.
bool block_runs(unsigned block);

/// The thread and `count` - 1 others of its block, from the `first`-th on, meet; each brings
/// `bytes` (256 at most). What all brought, thread by thread; there until the same threads meet
/// again.
const unsigned char* meet(size_t first, size_t count, const void* brought, size_t bytes);
/// The same, and `together` runs once, over what all brought, before any of them goes on: for an
/// instruction that the threads carry out as one.
void meet_for(size_t first, size_t count, const void* brought, size_t bytes,
              void (*together)(const unsigned char* all));
/// The thread waits for the launches in front of its own.
void griddepcontrol_wait();
/// Throws std::logic_error where those may still be running: nothing may be read or written that
/// they reach.
void require_predecessors();
/// All threads of the cluster meet.
void meet_cluster();
/// The thread goes on when `come(context)`, which is asked between turns.
void wait_until(bool (*come)(void* context), void* context);
/// `work` happens at some later moment: what another engine of the GPU does.
void later(std::function<void()> work);

}  // namespace emulator
