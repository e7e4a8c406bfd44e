#include "command/launch.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <future>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
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
    const char* value = std::getenv(name);
    if (value && *value) return value;
  }
  return nullptr;
}

/// Returns the number in an environment variable, or -1 if the variable has no valid number.
int number_in(const char* name) {
  const char* const text = variable({name});
  int out = -1;
  if (!text) return out;
  const auto [end, error] = std::from_chars(text, text + std::strlen(text), out);
  return error == std::errc() && *end == 0 && out >= 0 ? out : -1;
}

/// The variables in which a launcher without MPI passes a process's rank and the number of ranks.
struct Launcher {
  const char *rank_name, *size_name;
  int rank() const { return number_in(rank_name); }
  int size() const { return number_in(size_name); }
};

/// Returns the launcher without MPI that started this process as one of multiple ranks, if any.
std::optional<Launcher> other_launcher() {
  for (const Launcher& l :
       {Launcher{"RANK", "WORLD_SIZE"}, Launcher{"SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
        Launcher{"SLURM_PROCID", "SLURM_NTASKS"}, Launcher{"SLURM_PROCID", "SLURM_NPROCS"},
        Launcher{"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},  // MVAPICH, and IBM's jsrun
        Launcher{"JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"}}) {
    // SLURM_NTASKS is the number of tasks of the job, but a job step may have fewer.
    if (l.size() == 1 && l.size_name == std::string_view("SLURM_STEP_NUM_TASKS")) break;
    if (l.size() > 1) return l;
  }
  return std::nullopt;
}

bool is_slurm(const Launcher& launcher) {
  return launcher.rank_name == std::string_view("SLURM_PROCID");
}

/// Returns whether to ignore the variables of MPI launchers. They may be set by an srun that
/// started torchrun, or by an srun with a PMI that this MPI does not support.
bool is_not_for_mpi() {
  if (variable({"OMPI_COMM_WORLD_SIZE"}) || !variable({"SLURM_STEP_ID"})) return false;
  const auto other = other_launcher();
  if (other && !is_slurm(*other)) return variable({"TORCHELASTIC_RUN_ID"});
  const int rank = other ? other->rank() : 0, size = other ? other->size() : 1;
#if !MUONRT_TOOL_MPI
  if (number_in("PMIX_RANK") == rank) return true;
#elif defined(OPEN_MPI)
  // Open MPI supports PMIx. Only version 4 can be built with support for Slurm's PMI2.
  if (variable({"PMIX_RANK"})) return false;
#else
  return false;
#endif
  return number_in("PMI_RANK") == rank && number_in("PMI_SIZE") == size;
}

/// Returns the first host of a Slurm host list; for example, node3 for "node[3,7-9],other".
std::string first_host(std::string_view list) {
  std::string out;
  bool inside = false, skip = false;
  for (const char c : list) {
    if (c == '[') inside = true;
    if (c == ',' && !inside) break;
    if (inside && (c == ',' || c == '-')) skip = true;
    if (c != '[' && c != ']' && !skip) out += c;
    if (c == ']') inside = skip = false;
  }
  return out;
}

/// This bit is set in the exit code of a rank that has thrown an exception.
constexpr int kFailed = 1 << 8;

LaunchError ranks_differ(int ranks, int size) {
  return LaunchError("--ranks is " + std::to_string(ranks) + ", but the launcher started " +
                     std::to_string(size) + " ranks; leave --ranks out");
}

/// Runs one rank. If it throws, prints the message and aborts the communicator for its peers.
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
    // Every rank has the same invalid option, so only rank 0 prints the error.
    if (rank == 0) std::fprintf(stderr, "muonrt: %s\n", e.what());
  }
  if (comm) muonrt_comm_abort(comm->get(), MUONRT_ERROR_ABORTED, what.c_str());
  return kFailed + 1;
}

int run_threads(int ranks, double timeout, const ThreadLink& link,
                const std::function<int(Comm&)>& work) {
  const ThreadGroupHandle group = make_thread_group(ranks, link);
  std::vector<int> codes(static_cast<size_t>(ranks), 1);
  std::vector<std::thread> threads;
  // The ranks start after all threads exist, so no rank waits for a thread that was not created.
  std::promise<bool> all;
  const std::shared_future<bool> begins = all.get_future().share();
  std::string missing;
  try {
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        if (!begins.get()) return;
        codes[static_cast<size_t>(rank)] = run_rank(
            rank, timeout, [&] { return Comm::thread(group.get(), rank); }, work);
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
/// Seconds in which the other ranks must exit after a failure. Leaving an exchange may take 6 s.
constexpr double kGrace = 8;

/// Returns the number of ranks in the launcher's environment, or 0 if it is `size`.
int ranks_elsewhere(int size) {
  int out = 0;
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* const ranks = std::getenv(name);
    if (ranks) out = std::atoi(ranks);
    if (ranks && out == size) return 0;
  }
  // With PMIx, only the job manager's variables contain the number of ranks.
  const auto other = other_launcher();
  if (out == 0 && other && other->size() != size) out = other->size();
  return out;
}

/// Exchanges the exit codes of all ranks and returns the largest. Does not use an MPI collective,
/// because it would wait forever for a rank that never calls it. Stops all ranks if a rank sends no
/// code before the timeout, or within kGrace after another rank has failed.
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
    throw LaunchError("the launcher started " + std::to_string(launched) +
                      " ranks, but this muonrt's MPI sees " + std::to_string(size) +
                      "; use the mpirun of the MPI that it was built with");
  }
  if (ranks != 0 && ranks != size) {
    MPI_Finalize();
    throw ranks_differ(ranks, size);
  }
  const auto join = [&] {
    muonrt_comm_t* handle = nullptr;
    check(muonrt_comm_create_mpi(&handle, MPI_COMM_WORLD, milliseconds(timeout)));
    return Comm(handle);
  };
  // If this rank exited with an error now, the launcher would kill ranks that are still waiting.
  const int worst = end_together(rank, run_rank(rank, timeout, join, work), timeout);
  const MpiAlarm alarm(timeout + kGrace);
  MPI_Finalize();
  return worst % kFailed;
}
#endif

/// Returns whether this process is the only one, although its environment contains the number of
/// tasks of a Slurm job. This is the case in a job script and in a shell inside the job's
/// allocation. If --ranks is not set, the process counts as one of the tasks.
bool is_single(const Launcher& launcher, int ranks) {
  const bool task = launcher.rank() >= 0 && (launcher.rank() > 0 || variable({"SLURM_STEP_ID"}));
  return ranks != 0 && !task && is_slurm(launcher);
}

/// Returns the start of errors about the environment. The next function returns the rest.
std::string cause(const Launcher& launcher) {
  const std::string size = std::to_string(launcher.size());
  return std::string(launcher.size_name) + " is " + size + ", so " + size +
         " processes are the ranks, but ";
}
std::string remedy(const Launcher& launcher) {
  return is_slurm(launcher) ? ", or pass --ranks for threads of one process"
                            : std::string(", or unset ") + launcher.size_name + " for one process";
}

/// The address that the processes of a launcher use to connect to rank 0.
struct Address {
  std::string host, port;
  /// Returns "host:port", or "[host]:port" for IPv6.
  std::string text() const {
    return (host.find(':') == std::string::npos ? host : '[' + host + ']') + ':' + port;
  }
  /// Returns the address that rank 0 listens on. It covers all interfaces, because rank 0's own
  /// host name may resolve to a loopback address.
  Address listening() const {
    if (host == "localhost" || host == "::1" || host.rfind("127.", 0) == 0) return *this;
    return {host.find(':') == std::string::npos ? "0.0.0.0" : "::", port};
  }
};

Address address_of_rank_0(const Launcher& launcher) {
  const char* const master = variable({"MASTER_ADDR"});
  const char* const nodes =
      variable({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  const bool slurm = is_slurm(launcher);
  Address out;
  if (master) out.host = master;
  if (!master && slurm && nodes) out.host = first_host(nodes);
  int port = number_in("MASTER_PORT");
  const int job = number_in("SLURM_JOB_ID");
  // Use the next port, because torchrun's agent itself listens on MASTER_PORT.
  const char* const agent = variable({"TORCHELASTIC_USE_AGENT_STORE"});
  if (port > 0 && agent && agent == std::string_view("True")) ++port;
  if (port < 0 && slurm && job >= 0)
    port = 10000 + (job + std::max(0, number_in("SLURM_STEP_ID"))) % 20000;
  if (out.host.empty() || port < 1 || port > 65535) {
    throw LaunchError(cause(launcher) + (out.host.empty() ? "MASTER_ADDR" : "MASTER_PORT") +
                      " is not set or invalid; set MASTER_ADDR and MASTER_PORT to an address of "
                      "rank 0, start muonrt under mpirun" +
                      remedy(launcher));
  }
  out.port = std::to_string(port);
  return out;
}

/// Timeout for connecting, in seconds. A launcher starts all processes at nearly the same time.
constexpr double kConnect = 60;

/// Runs this process as one of the ranks that a launcher without MPI has started. The ranks connect
/// over TCP. They have no common secret, so they use a text that identifies the run. This only
/// prevents two runs from connecting to each other by mistake.
int run_processes(const Launcher& launcher, int ranks, double timeout,
                  const std::function<int(Comm&)>& work) {
  const int rank = launcher.rank(), size = launcher.size();
  if (rank < 0 || rank >= size) {
    const char* const text = variable({launcher.rank_name});
    throw LaunchError(cause(launcher) + launcher.rank_name + " is " + (text ? text : "not set") +
                      "; set it to 0 to " + std::to_string(size - 1) + remedy(launcher));
  }
  if (ranks != 0 && ranks != size) throw ranks_differ(ranks, size);
  const Address address = address_of_rank_0(launcher);
  std::string secret = "muonrt run " + address.text() + ' ' + std::to_string(size);
  for (const char* name : {"SLURM_JOB_ID", "SLURM_STEP_ID", "TORCHELASTIC_RUN_ID"}) {
    const char* const value = variable({name});
    secret += std::string(" ") + (value ? value : "");
  }
  const std::string at = (rank == 0 ? address.listening() : address).text();
  const auto join = [&] {
    muonrt_tcp_options_t options = tcp_options();
    options.rank = rank;
    options.size = size;
    options.address = at.c_str();
    options.secret = secret.data();
    options.secret_bytes = std::ssize(secret);
    options.timeout_ms = milliseconds(std::min(timeout, kConnect));
    try {
      return Comm::tcp(options);
    } catch (const Error& e) {
      if (rank != 0) throw;
      throw std::runtime_error(cause(launcher) + "they did not connect: " + e.what() +
                               remedy(launcher));
    }
  };
  // All ranks return the largest exit code. Rank 0 exits last, because it forwards errors.
  const auto together = [&](Comm& comm) {
    std::vector<int> codes(static_cast<size_t>(size), work(comm));
    const int mine = codes[0];
    comm.allgather(codes.data(), &mine, sizeof mine);
    try {
      comm.allgather(std::vector<int>(codes.size()).data(), &mine, sizeof mine);
    } catch (const Error&) {  // rank 0 exited, but all ranks had received the codes
    }
    return *std::max_element(codes.begin(), codes.end());
  };
  return run_rank(rank, timeout, join, together) % kFailed;
}

}  // namespace

bool under_mpi() {
  return variable({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK"}) && !is_not_for_mpi();
}

bool under_launcher() { return under_mpi() || other_launcher(); }

int launcher_rank() {
  if (!under_mpi()) {
    const auto other = other_launcher();
    return other && other->rank() < other->size() ? std::max(0, other->rank()) : 0;
  }
  const char* rank = variable({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK"});
  return rank ? std::atoi(rank) : 0;
}

int launch(int ranks, double timeout, const std::function<int(Comm&)>& work,
           const ThreadLink& link) {
  if (link.given() && under_launcher())
    throw LaunchError(
        "messages are delayed only between threads of one process; use --ranks N without a "
        "launcher, or leave out --link-bytes and --link-message-seconds");
#if MUONRT_TOOL_MPI
  if (under_mpi()) return run_mpi(ranks, timeout, work);
#else
  if (under_mpi()) {
    throw LaunchError(
        "this muonrt was built without MPI; use --ranks N without a launcher, or configure with "
        "-DMUONRT_MPI=ON");
  }
#endif
  if (const auto other = other_launcher(); other && !is_single(*other, ranks))
    return run_processes(*other, ranks, timeout, work);
  return run_threads(ranks == 0 ? 1 : ranks, timeout, link, work);
}

}  // namespace muonrt::tool
