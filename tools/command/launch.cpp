#include "command/launch.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <future>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#if MUONRT_TOOL_MPI
#include <mpi.h>

#include "command/mpi_alarm.hpp"
#include "muonrt/mpi_comm.h"
#endif

namespace muonrt::tool {

namespace {

const char* variable(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name)) return value;
  }
  return nullptr;
}

/// Added to the exit code of a rank that threw.
constexpr int kFailed = 1 << 8;

/// Runs one rank. An exception is printed, and the communicator is aborted for its peers.
/// @param join  creates the communicator of the rank.
int run_rank(int rank, double timeout, const std::function<Comm()>& join,
             const std::function<int(Comm&)>& work) {
  std::optional<Comm> comm;
  std::string what;
  try {
    comm.emplace(join());
    comm->set_timeout(milliseconds(timeout));
    return work(*comm);
  } catch (const Error& e) {
    what = e.what();
    std::fprintf(stderr, "muonrt: rank %d: %s\n", rank, e.what());
  } catch (const std::exception& e) {
    what = e.what();
    // A wrong option fails on every rank in the same way, so only rank 0 prints it.
    if (rank == 0) std::fprintf(stderr, "muonrt: %s\n", e.what());
  }
  if (comm) muonrt_comm_abort(comm->get(), MUONRT_ERROR_ABORTED, what.c_str());
  return kFailed + 1;
}

int run_threads(int ranks, double timeout, const std::function<int(Comm&)>& work) {
  ThreadGroup group(ranks);
  std::vector<int> codes(static_cast<size_t>(ranks), 1);
  std::vector<std::thread> threads;
  // All ranks start together, so that none waits for a rank whose thread could not be created.
  std::promise<bool> all;
  const std::shared_future<bool> begins = all.get_future().share();
  std::string missing;
  try {
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        if (!begins.get()) return;
        codes[static_cast<size_t>(rank)] = run_rank(
            rank, timeout, [&] { return group.comm(rank); }, work);
      });
    }
  } catch (const std::system_error& e) {
    missing = e.what();
  }
  all.set_value(missing.empty());
  for (std::thread& t : threads) t.join();
  if (!missing.empty()) {
    throw std::runtime_error("--ranks is " + std::to_string(ranks) + ", but thread " +
                             std::to_string(threads.size()) + " could not be started (" + missing +
                             "); use fewer, or raise the limits of memory and threads");
  }
  int worst = 0;
  for (const int code : codes) worst = std::max(worst, code);
  return worst % kFailed;
}

#if MUONRT_TOOL_MPI
/// Seconds; more than the ranks need to leave a failed exchange one after another (6).
constexpr double kGrace = 8;

/// The number of ranks in the launcher's environment if it is not `size`, otherwise 0.
int ranks_elsewhere(int size) {
  int out = 0;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* const ranks = std::getenv(name);
    if (!ranks) continue;
    out = std::atoi(ranks);
    if (out == size) return 0;
  }
  return out;
}

/// Exchanges the exit codes of all ranks and returns the largest. It uses no collective, which
/// would wait without a limit for a rank that never calls it. If a rank sends no code before the
/// timeout, or within kGrace after another rank has failed, all ranks are stopped.
int end_together(int rank, int mine, double timeout) {
  int size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  std::vector<int> codes(static_cast<size_t>(size));
  std::vector<MPI_Request> requests(2 * codes.size());
  for (int peer = 0; peer < size; ++peer) {
    const auto at = static_cast<size_t>(peer);
    MPI_Irecv(&codes[at], 1, MPI_INT, peer, 0, MPI_COMM_WORLD, &requests[at]);
    MPI_Isend(&mine, 1, MPI_INT, peer, 0, MPI_COMM_WORLD, &requests[codes.size() + at]);
  }
  double end = MPI_Wtime() + std::max(timeout, kGrace);
  for (;; std::this_thread::sleep_for(std::chrono::milliseconds(1))) {
    int worst = mine, waits = 0;
    std::string silent;
    for (size_t i = 0; i < requests.size(); ++i) {
      int done = 0;
      MPI_Test(&requests[i], &done, MPI_STATUS_IGNORE);
      waits += !done;
      if (i >= codes.size()) continue;
      if (done) worst = std::max(worst, codes[i]);
      if (!done) silent += (silent.empty() ? "rank " : ", rank ") + std::to_string(i);
    }
    if (waits == 0) return worst;
    if (worst >= kFailed) end = std::min(end, MPI_Wtime() + kGrace);
    if (MPI_Wtime() < end) continue;
    std::fprintf(stderr, "muonrt: rank %d: %s did not respond; stopping all ranks\n", rank,
                 silent.c_str());
    std::fflush(nullptr);
    const MpiAlarm alarm(kGrace);
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

int run_mpi(int ranks, double timeout, const std::function<int(Comm&)>& work) {
  int provided = 0;
  {
    const MpiAlarm alarm(timeout + kGrace);
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  }
  int rank = 0, size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (const int launched = ranks_elsewhere(size); launched != 0) {
    MPI_Finalize();
    throw std::runtime_error("the launcher started " + std::to_string(launched) +
                             " ranks, but this muonrt's MPI sees " + std::to_string(size) +
                             "; use the mpirun of the MPI that it was built with");
  }
  if (ranks != 0 && ranks != size) {
    MPI_Finalize();
    throw std::runtime_error("--ranks is " + std::to_string(ranks) + ", but the launcher started " +
                             std::to_string(size) + "; leave --ranks out");
  }
  const auto join = [&] {
    muonrt_comm_t* handle = nullptr;
    check(muonrt_comm_create_mpi(&handle, MPI_COMM_WORLD, milliseconds(timeout)));
    return Comm(handle);
  };
  // If a rank exited with an error while others wait, the launcher would kill all of them.
  const int worst = end_together(rank, run_rank(rank, timeout, join, work), timeout);
  const MpiAlarm alarm(timeout + kGrace);
  MPI_Finalize();
  return worst % kFailed;
}
#endif

}  // namespace

bool under_launcher() {
  return variable({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) != nullptr;
}

int launcher_rank() {
  const char* rank = variable({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"});
  return rank ? std::atoi(rank) : 0;
}

int launch(int ranks, double timeout, const std::function<int(Comm&)>& work) {
#if MUONRT_TOOL_MPI
  if (under_launcher()) return run_mpi(ranks, timeout, work);
#else
  if (under_launcher()) {
    throw std::runtime_error(
        "this muonrt was built without MPI; use --ranks N without a launcher, or configure with "
        "-DMUONRT_MPI=ON");
  }
#endif
  return run_threads(ranks == 0 ? 1 : ranks, timeout, work);
}

}  // namespace muonrt::tool
