#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "cuda_runtime.h"

namespace emulator {

/// Thread blocks that run at the same time and access each other's dynamic shared memory.
struct Cluster {
  std::vector<uint3> blocks;  // indices of the blocks
  dim3 grid, threads;
  size_t shared_bytes = 0;  // shared memory of each block
  bool early = false;       // whether the launch may begin before the previous launch has ended
};

/// Runs a cluster. Calls `thread` once for each thread of the cluster; the threads take turns.
/// Rethrows an exception that a thread throws. Throws std::logic_error if the threads wait for an
/// event that cannot happen.
void run_cluster(const std::function<void()>& thread, const Cluster& cluster);

// Emulated instructions use the following functions. Only a running thread may call them.

/// Returns the index of the thread in the cluster.
size_t thread_in_cluster();
/// Returns the number of threads of the cluster.
size_t threads_in_cluster();
/// Returns the index of the thread's block in the cluster.
unsigned block_in_cluster();
/// Returns the number of clusters that this host thread has run.
uint64_t cluster_number();
/// Returns the dynamic shared memory of a block of the cluster. The memory is not initialized.
unsigned char* shared_memory(unsigned block);
/// Returns the size of the dynamic shared memory of a block.
size_t shared_bytes();

/// Returns whether a thread of the block is still running. If no thread is running, the shared
/// memory of the block must not be accessed.
bool block_runs(unsigned block);

/// Waits until `count` threads of the block, beginning with thread `first`, have called this
/// function. Each thread contributes `bytes` bytes (at most 256). Returns all contributions in the
/// order of the threads. The result is valid until the next call by the same threads.
const unsigned char* allgather(size_t first, size_t count, const void* contribution, size_t bytes);
/// Like allgather(), but calls `function` once with all contributions before any of the threads
/// continues. Use this function for instructions that several threads execute together.
void run_as_one(size_t first, size_t count, const void* contribution, size_t bytes,
                void (*function)(const unsigned char* all));
/// Waits until the previous launches have ended.
void griddepcontrol_wait();
/// Throws std::logic_error if previous launches may still run. In that state, the thread may
/// neither read nor write memory that these launches access.
void require_predecessors();
/// Waits until all threads of the cluster have called this function.
void cluster_barrier();
/// Blocks the thread until `ready(context)` returns true. `ready` is called between turns.
void wait_until(bool (*ready)(void* context), void* context);
/// Runs `work` at some later time, like a copy engine of a GPU.
void later(std::function<void()> work);

}  // namespace emulator
