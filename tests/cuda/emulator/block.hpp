#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "cuda_runtime.h"

namespace emulator {

/// Thread blocks that run at the same time and access each other's dynamic shared memory.
struct Cluster {
  std::vector<uint3> blocks;  // their indices
  dim3 grid, threads;
  size_t shared_bytes = 0;  // of each block
  bool early = false;       // its launch may begin before the previous one has ended
};

/// Runs a cluster. Calls `thread` once for each of its threads, which take turns. Throws what a
/// thread throws, and std::logic_error if the threads wait for something that cannot happen.
void run_cluster(const std::function<void()>& thread, const Cluster& cluster);

// For the emulated instructions; called by a running thread.

/// Index of the thread in the cluster, number of threads of the cluster, and index of the thread's
/// block.
size_t thread_in_cluster();
size_t threads_in_cluster();
unsigned block_in_cluster();
/// Number of the cluster, counted over those that this host thread has run.
uint64_t cluster_number();
/// Dynamic shared memory of a block of the cluster; not initialized.
unsigned char* shared_memory(unsigned block);
/// Size of the dynamic shared memory.
size_t shared_bytes();

/// Whether a thread of the block has not ended. Otherwise its shared memory must not be accessed.
bool block_runs(unsigned block);

/// A barrier of `count` threads of the block, from the `first`-th on, in which each contributes
/// `bytes` (at most 256). Returns all contributions in the order of the threads; they are valid
/// until the next call of the same threads.
const unsigned char* allgather(size_t first, size_t count, const void* contribution, size_t bytes);
/// As allgather. Before any of the threads continues, `function` is called once with all
/// contributions. For an instruction that the threads execute function.
void run_as_one(size_t first, size_t count, const void* contribution, size_t bytes,
                void (*function)(const unsigned char* all));
/// Waits for the previous launches.
void griddepcontrol_wait();
/// Throws std::logic_error if these may still run, so that no memory that they access may be read
/// or written.
void require_predecessors();
/// Barrier of all threads of the cluster.
void cluster_barrier();
/// Blocks the thread until `ready(context)` returns true; it is called between turns.
void wait_until(bool (*ready)(void* context), void* context);
/// Runs `work` at some later time, as another engine of the GPU would.
void later(std::function<void()> work);

}  // namespace emulator
