#pragma once

#include <cstddef>
#include <cstdint>

// Who of a cluster may reach which shared memory when, and who of a launch which memory of the
// device: every access is held against all that came before, by what the threads have done to be in
// order, not by the turns they happened to take. A race is found wherever two accesses are
// unordered, on whichever side luck put them. Clocks as in Flanagan and Freund 2009, FastTrack,
// section 3; proxies as in PTX ISA 9.0, section 8.7.
//
// All of it about the running thread's cluster; called before what they speak of. Each throws
// std::logic_error at an access that is not in order.

namespace emulator::ptx::order {

enum class Access { kRead, kWrite, kAtomic };

/// An access: whose, and at which of its clocks. `engine`: by a copy or a product.
struct Epoch {
  uint32_t who = 0, clock = 0;  // clock 0: none
  bool engine = false, atomic = false;
};
/// Of the running thread, now.
Epoch now(bool atomic);
/// Whether the running thread knows that an access of its cluster is over.
bool is_over(const Epoch& e);

/// The running thread itself reaches shared memory of a block.
void access(unsigned block, size_t offset, size_t bytes, Access access);

/// A bulk copy of the running thread writes; who waits for the barrier's phase may look.
void bulk_write(unsigned block, size_t offset, size_t bytes, const uint64_t* barrier);
/// A bulk copy of the running thread reads, until it has been committed and `tma_store_wait` comes.
void bulk_read(size_t offset, size_t bytes);
void tma_store_commit();
void tma_store_wait();
/// Asynchronous copies of 16 bytes write for the running thread, until it waits for their group.
void copy_write(size_t offset, size_t bytes);
void copies_commit();
void copies_wait(uint32_t pending);
/// The tensor cores read for the running thread's warpgroup, until one of it waits for their group.
void product_read(size_t offset, size_t bytes);
void products_commit();
/// All groups but the last `pending` are done.
void products_wait(uint32_t pending);

/// What the running thread did to shared memory is visible to bulk copies and tensor cores.
void fence();

/// The thread comes to a barrier of threads, and goes on.
/// @param which  number of the barrier among those of its kind and place.
void arrive(unsigned which);
void depart(unsigned which);
/// Numbers of barriers.
unsigned of_block(unsigned number);
unsigned of_warp();
unsigned of_cluster();

/// A barrier in shared memory must be made before the thread comes to it, and before copies do.
void require_made(unsigned block, size_t offset);
void require_made_for_engines(unsigned block, size_t offset);
/// The thread has come, or has waited.
void arrived(const uint64_t* barrier);
void waited(const uint64_t* barrier);

/// The running thread, or a bulk copy of its, reaches memory of the device. Clusters of a launch
/// are in no order at all.
void device_access(uint64_t address, size_t bytes, Access access);
/// Another launch begins on this processor.
void next_launch();

}  // namespace emulator::ptx::order
