#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/nccl/nccl_api.hpp"

/// A fake NCCL for the threads of a test on the emulated GPU. It supports groups, and sums over all
/// ranks. A message of a group is copied when the streams of both ranks have reached it. As with
/// NCCL, a blocking communicator waits for the other ranks when it is created, when it is split,
/// and in its first group. The fake checks the rules that users of NCCL must follow, and records
/// violations.
namespace fake_nccl {

const muonrt::cuda::NcclApi& api();

/// Sets the version for the calling thread. The default is 22809. Before 2.26, an operation on a
/// nonblocking communicator leaves a job in the thread. The thread must finish this job with a call
/// that does more than query errors.
void set_version(int version);
/// Discards all communicators and faults, and waits for teardowns in progress. Call this function
/// between tests, when no communicator exists.
void reset();
/// Returns the number of threads inside an abort or a destroy. An abort waits until the streams
/// have reached all enqueued operations. Both calls free memory, and freeing memory waits for the
/// GPU.
int ending();

/// Returns a description of each violation: a message without its counterpart, two threads in one
/// communicator, use after an abort, a second abort, or an unfinished job of a thread.
std::vector<std::string> problems();
/// Returns the operations of a rank's last communicator, for example "group: send 1 x 64, receive 1
/// x 64" and "all_reduce 5".
std::vector<std::string> log(int rank);
/// Numbers of communicators that have been created, aborted and destroyed.
struct Counts {
  int64_t made = 0, aborted = 0, destroyed = 0;
};
Counts counts();
/// Returns the configuration that was passed when this rank's last communicator was created or
/// split.
muonrt::cuda::NcclConfig config(int rank);
/// Returns the largest number of messages that a rank's last communicator had in flight.
int64_t max_in_flight(int rank);
/// Returns the addresses that incomplete splits will write to.
std::vector<const void*> unwritten();

/// From now on, makes NCCL report to this rank that another rank has failed.
void fail(int rank);
/// Makes all later calls on this rank that create or split a communicator return `result`.
void refuse(int rank, muonrt::cuda::NcclResult result);
/// Prevents the stream of this rank from reaching its all_reduce, so that the other ranks wait.
void stall_reductions(int rank, bool stalled);

}  // namespace fake_nccl
