#pragma once

#include <cstddef>
#include <cstdint>

// Checks the order of a cluster's accesses to shared memory, and of a launch's accesses to memory
// of the device. Every access is compared with all earlier ones by the synchronization of the
// threads, not by the turns that they took, so a race is found in any schedule. Vector clocks as in
// Flanagan and Freund 2009, FastTrack, section 3; proxies as in PTX ISA 9.0, section 8.7.
//
// All functions concern the running thread's cluster and are called before the operation. Each
// throws std::logic_error at an access that is not ordered.

namespace emulator::ptx::order {

enum class Access { kRead, kWrite, kAtomic };

/// An access: the id of its thread or engine, and the clock. `engine`: by a copy or a product.
struct Epoch {
  uint32_t who = 0, clock = 0;  // clock 0: none
  bool engine = false, atomic = false;
};
/// The current epoch of the running thread.
Epoch now(bool atomic);
/// Whether an access of the cluster is complete before the running thread.
bool is_over(const Epoch& e);

/// The running thread accesses shared memory of a block.
void access(unsigned block, size_t offset, size_t bytes, Access access);

/// A bulk copy of the running thread writes; threads that wait for the barrier's phase may read.
void bulk_write(unsigned block, size_t offset, size_t bytes, const uint64_t* barrier);
/// A bulk copy of the running thread reads, until it has been committed and `tma_store_wait` is
/// called.
void bulk_read(size_t offset, size_t bytes);
void tma_store_commit();
void tma_store_wait();
/// The tensor cores read for the running thread's warpgroup, until one of it waits for their group.
void product_read(size_t offset, size_t bytes);
void products_commit();
/// All groups except the last `pending` are complete.
void products_wait(uint32_t pending);

/// Makes the running thread's accesses to shared memory visible to bulk copies and tensor cores.
void fence();

/// The thread arrives at a barrier of threads, and leaves it.
/// @param which  number of the barrier among those of its kind and block.
void arrive(unsigned which);
void depart(unsigned which);
/// Numbers of barriers.
unsigned of_block(unsigned number);
unsigned of_warp();
unsigned of_cluster();

/// A barrier in shared memory must be initialized before a thread or a copy arrives.
void require_made(unsigned block, size_t offset);
void require_made_for_engines(unsigned block, size_t offset);
/// The thread has arrived, or has waited.
void arrived(const uint64_t* barrier);
void waited(const uint64_t* barrier);

/// The running thread, or one of its bulk copies, accesses memory of the device. Clusters of a
/// launch are not ordered.
void device_access(uint64_t address, size_t bytes, Access access);
/// Another launch begins on this host thread.
void next_launch();

}  // namespace emulator::ptx::order
