#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <stdexcept>

#include "command/thread_link.hpp"
#include "muonrt/muonrt.hpp"

namespace muonrt::tool {

/// A process cannot become a rank of what its environment states. Every process prints it, because
/// the others may not run.
struct LaunchError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Runs `work` on every rank and returns the largest exit code. Under a launcher this process is
/// one rank; otherwise `ranks` threads of this process are the ranks (0: one). If a rank throws,
/// its number and the message are printed, and the other ranks end with an error.
///
/// The ranks of mpirun use MPI. Processes whose environment has RANK and WORLD_SIZE (torchrun), or
/// SLURM_PROCID and SLURM_NTASKS or SLURM_STEP_NUM_TASKS (srun), connect over TCP to rank 0 at
/// MASTER_ADDR and MASTER_PORT. With Slurm the defaults are the job's first host and a port between
/// 10000 and 29999 that depends on the job's number.
/// Throws LaunchError if `ranks` contradicts the launcher, or the address is unknown.
/// @param timeout  limit for every wait for other ranks, in seconds. Under mpirun all ranks are
///                 stopped if one does not end before it, and the message names that rank.
/// @param work     receives the communicator of the rank; called once for each rank.
/// @param link     delays messages between threads; an error under a launcher.
int launch(int ranks, double timeout, const std::function<int(Comm&)>& work,
           const ThreadLink& link = {});

/// Converts seconds to the milliseconds of the library's functions.
inline int64_t milliseconds(double seconds) { return std::llround(seconds * 1e3); }

/// Whether this process is a rank that a launcher such as mpirun or srun started.
bool under_launcher();
/// Whether the launcher is that of an MPI.
bool under_mpi();
/// The rank of this process under a launcher, otherwise 0.
int launcher_rank();

}  // namespace muonrt::tool
