#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/nccl/nccl_api.hpp"

/// NCCL among the threads of a test, over the emulated GPU: groups whose messages move when both
/// ends' streams have come to them, sums over all ranks. Communicators that block wait inside calls
/// for their peers, as NCCL does: to be made, to be split, in their first group. It knows the rules
/// that NCCL leaves to its users, and keeps what was done against them.
namespace fake_nccl {

const muonrt::cuda::NcclApi& api();

/// The calling thread's version from now on; 22809 otherwise. Before 2.26 work that was given to a
/// communicator that does not block leaves a job with the thread, which has to be finished there by
/// a call that asks more than for errors.
void set_version(int version);
/// Forgets all communicators and faults. Between tests, while there are none; waits for what is
/// ending.
void reset();
/// Threads inside of an abort, which waits for streams that have not come to what was enqueued, or
/// destroying a communicator: both free memory, which waits for the GPU.
int ending();

/// Rules that were broken: messages that fit no other, two threads in one communicator, use after
/// an abort, a second abort, a thread's job left unfinished. One text for each.
std::vector<std::string> problems();
/// What a rank's last communicator was given: "group: send 1 x 64, receive 1 x 64", "all_reduce 5".
std::vector<std::string> log(int rank);
/// Communicators made so far, how many were aborted and how many are left.
struct Counts {
  int64_t made = 0, aborted = 0, destroyed = 0;
};
Counts counts();
/// What the communicator made or split last was asked for by this rank.
muonrt::cuda::NcclConfig config(int rank);
/// Messages that a rank's last communicator had under way at once.
int64_t most_under_way(int rank);
/// Where splits that nobody has seen the end of will write.
std::vector<const void*> unwritten();

/// NCCL tells this rank of an error of a peer from now on.
void fail(int rank);
/// This rank's communicators are neither made nor split from now on: NCCL gives `result` instead.
void refuse(int rank, muonrt::cuda::NcclResult result);
/// This rank's all_reduce is never reached by its stream: the others wait for it.
void stall_reductions(int rank, bool stalled);

}  // namespace fake_nccl
