#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <stdexcept>

#include "command/thread_link.hpp"
#include "muonrt/muonrt.hpp"

namespace muonrt::tool {

/// The error of a process that cannot become the rank that its environment describes. Every process
/// prints this error, because no other process may be running.
struct LaunchError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Runs `work` on every rank and returns the largest exit code. Under a launcher, this process is
/// one rank. Otherwise the ranks are `ranks` threads of this process; 0 means one thread. If a rank
/// throws an exception, the function prints the rank's number and the exception's message, and the
/// other ranks exit with an error.
///
/// The ranks of mpirun use MPI. Without MPI, the environment of each process must have RANK and
/// WORLD_SIZE (torchrun), or SLURM_PROCID and one of SLURM_NTASKS and SLURM_STEP_NUM_TASKS (srun).
/// The processes then connect over TCP to rank 0 at MASTER_ADDR and MASTER_PORT. With Slurm, the
/// defaults are the job's first host, and a port from 10000 to 29999 that depends on the job ID.
/// Throws LaunchError if `ranks` contradicts the launcher, or if the address is unknown.
/// @param timeout  limit in seconds for every wait for other ranks. Under mpirun, if a rank does
///     not exit within this time after another rank, all ranks are stopped, and the message names
///     the rank that did not exit.
/// @param work     called once on each rank, with the rank's communicator.
/// @param link     delays messages between threads; rejected under a launcher.
int launch(int ranks, double timeout, const std::function<int(Comm&)>& work,
           const ThreadLink& link = {});

/// Converts seconds to milliseconds for the library's functions.
inline int64_t milliseconds(double seconds) { return std::llround(seconds * 1e3); }

/// Returns whether a launcher such as mpirun or srun has started this process as a rank.
bool under_launcher();
/// Returns whether the launcher belongs to an MPI library.
bool under_mpi();
/// Returns the rank of this process under a launcher, otherwise 0.
int launcher_rank();

}  // namespace muonrt::tool
