#pragma once

#include <cstddef>
#include <cstdint>

// Checks the order of a cluster's accesses to shared memory, and of a launch's accesses to device
// memory. Every access is compared with all earlier accesses. Two accesses are ordered only if
// synchronization orders them, so a race is found in any schedule. The checks use vector clocks as
// described in Flanagan and Freund 2009, FastTrack, section 3, and proxies as described in PTX ISA
// 9.0, section 8.7.
//
// All functions apply to the running thread's cluster. Call a function before the operation that it
// records. Each function throws std::logic_error if it finds conflicting accesses that are not
// ordered.

namespace emulator::ptx::order {

enum class Access { kRead, kWrite, kAtomic };

/// An access, identified by the id of its thread or engine and by the clock. `engine` is true if a
/// copy or a product made the access.
struct Epoch {
  uint32_t who = 0, clock = 0;  // a clock of 0 means no access
  bool engine = false, atomic = false;
};
/// Returns the current epoch of the running thread.
Epoch now(bool atomic);
/// Returns whether an access of the cluster is complete at the current position of the running
/// thread.
bool is_over(const Epoch& e);

/// Records that the running thread accesses a block's shared memory.
void access(unsigned block, size_t offset, size_t bytes, Access access);

/// Records a write by a bulk copy of the running thread. Threads that have waited for the current
/// phase of the barrier may read the data.
void bulk_write(unsigned block, size_t offset, size_t bytes, const uint64_t* barrier);
/// Records a read by a bulk copy of the running thread. The read ends with tma_store_commit() and
/// tma_store_wait().
void bulk_read(size_t offset, size_t bytes);
void tma_store_commit();
void tma_store_wait();
/// Records a read by the tensor cores for the running thread's warpgroup. The read ends when a
/// thread of the warpgroup waits for the group of products.
void product_read(size_t offset, size_t bytes);
void products_commit();
/// Records that all groups are complete, except the last `pending` groups.
void products_wait(uint32_t pending);

/// Makes the running thread's accesses to shared memory visible to bulk copies and tensor cores.
void fence();

/// Records that the thread arrives at a thread barrier.
/// @param which  the number of the barrier.
void arrive(unsigned which);
/// Records that the thread leaves a thread barrier.
void depart(unsigned which);
/// Each of these functions returns the number of a barrier: of a block, of a warp, or of the
/// cluster.
unsigned of_block(unsigned number);
unsigned of_warp();
unsigned of_cluster();

/// Checks that a barrier in shared memory was initialized before a thread arrives.
void require_made(unsigned block, size_t offset);
/// Checks that a barrier in shared memory was initialized before a copy arrives.
void require_made_for_engines(unsigned block, size_t offset);
/// Records that the thread has arrived at a barrier in shared memory.
void arrived(const uint64_t* barrier);
/// Records that the thread has waited for a barrier in shared memory.
void waited(const uint64_t* barrier);

/// Records that the running thread, or one of its bulk copies, accesses device memory. The clusters
/// of a launch are not ordered.
void device_access(uint64_t address, size_t bytes, Access access);
/// Begins another launch on this host thread.
void next_launch();

}  // namespace emulator::ptx::order
