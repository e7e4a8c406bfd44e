#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/nccl/nccl_api.hpp"

/// A fake NCCL for the threads of a test, over the emulated GPU: groups whose messages are copied
/// when the streams of both ends have reached them, and sums over all ranks. Blocking communicators
/// wait inside calls for their peers, as NCCL does: when they are created, when they are split, and
/// in their first group. It checks the rules that NCCL's users must follow, and records violations.
namespace fake_nccl {

const muonrt::cuda::NcclApi& api();

/// Sets the version for the calling thread; the default is 22809. Before 2.26 an operation on a
/// non-blocking communicator leaves a job in the thread, which must be finished there by a call
/// that does more than query errors.
void set_version(int version);
/// Discards all communicators and faults. Call it between tests, when no communicator exists; it
/// waits for teardowns in progress.
void reset();
/// Number of threads inside an abort, which waits for streams that have not reached enqueued
/// operations, or inside a destroy. Both free memory, which waits for the GPU.
int ending();

/// Violations, one text for each: messages that match no other, two threads in one communicator,
/// use after an abort, a second abort, an unfinished job of a thread.
std::vector<std::string> problems();
/// The operations of a rank's last communicator: "group: send 1 x 64, receive 1 x 64", "all_reduce
/// 5".
std::vector<std::string> log(int rank);
/// Numbers of communicators that were created, aborted and destroyed so far.
struct Counts {
  int64_t made = 0, aborted = 0, destroyed = 0;
};
Counts counts();
/// The configuration with which this rank's last communicator was created or split.
muonrt::cuda::NcclConfig config(int rank);
/// Largest number of messages that a rank's last communicator had in flight.
int64_t max_in_flight(int rank);
/// Addresses to which splits will write that no caller has completed.
std::vector<const void*> unwritten();

/// From now on NCCL reports an error of a peer to this rank.
void fail(int rank);
/// From now on creating or splitting a communicator returns `result` on this rank.
void refuse(int rank, muonrt::cuda::NcclResult result);
/// The stream of this rank never reaches its all_reduce, so the others wait for it.
void stall_reductions(int rank, bool stalled);

}  // namespace fake_nccl
