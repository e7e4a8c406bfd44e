#include "command/launch.hpp"

#include <cstdlib>
#include <exception>
#include <future>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#if MUONRT_TOOL_MPI
#include <mpi.h>

#include "muonrt/mpi.h"
#endif

namespace muonrt::tool {

namespace {

const char* variable(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name)) return value;
  }
  return nullptr;
}

// Runs one rank; what it throws is printed, and its peers are told.
int run_rank(Comm& comm, const std::function<int(Comm&)>& work) {
  try {
    return work(comm);
  } catch (const Error& e) {
    std::fprintf(stderr, "muonrt: rank %d: %s\n", comm.rank(), e.what());
    muonrt_comm_abort(comm.get(), MUONRT_ERROR_ABORTED, e.what());
  } catch (const std::exception& e) {
    // A wrong option fails alike on every rank; once is enough.
    if (comm.rank() == 0) std::fprintf(stderr, "muonrt: %s\n", e.what());
    muonrt_comm_abort(comm.get(), MUONRT_ERROR_ABORTED, e.what());
  }
  return 1;
}

int run_threads(int ranks, const std::function<int(Comm&)>& work) {
  ThreadGroup group(ranks);
  std::vector<int> codes(static_cast<size_t>(ranks), 1);
  std::vector<std::thread> threads;
  // None begins before all are there: a rank would wait for one that never comes.
  std::promise<bool> all;
  const std::shared_future<bool> begins = all.get_future().share();
  std::string missing;
  try {
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        if (!begins.get()) return;
        try {
          Comm comm = group.comm(rank);
          codes[static_cast<size_t>(rank)] = run_rank(comm, work);
        } catch (const std::exception& e) {
          std::fprintf(stderr, "muonrt: rank %d: %s\n", rank, e.what());
        }
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
  return worst;
}

#if MUONRT_TOOL_MPI
int run_mpi(int ranks, const std::function<int(Comm&)>& work) {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided);
  int size = 0, code = 1, worst = 1;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  if (ranks != 0 && ranks != size) {
    MPI_Finalize();
    throw std::runtime_error("--ranks is " + std::to_string(ranks) + ", but the launcher started " +
                             std::to_string(size) + "; leave --ranks out");
  }
  {
    MPI_Comm world = MPI_COMM_WORLD;
    muonrt_comm_t* handle = nullptr;
    constexpr int64_t kTimeoutMs = 60000;
    check(muonrt_comm_create_mpi(&handle, &world, kTimeoutMs));
    Comm comm(handle);
    code = run_rank(comm, work);
  }
  // A rank that leaves with an error while others wait would be killed together with them.
  MPI_Allreduce(&code, &worst, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  MPI_Finalize();
  return worst;
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

int launch(int ranks, const std::function<int(Comm&)>& work) {
#if MUONRT_TOOL_MPI
  if (under_launcher()) return run_mpi(ranks, work);
#else
  if (under_launcher()) {
    throw std::runtime_error(
        "this muonrt was built without MPI; use --ranks N without a launcher, or configure with "
        "-DMUONRT_MPI=ON");
  }
#endif
  return run_threads(ranks == 0 ? 1 : ranks, work);
}

}  // namespace muonrt::tool
