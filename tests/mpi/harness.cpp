#include "mpi/harness.hpp"

#include <string_view>
#include <vector>

#include "base/text.hpp"
#include "comm/callback_transport.hpp"
#include "comm/mpi/mpi_transport.hpp"
#include "mpi/session.hpp"

namespace mpi_test {

namespace {

struct State {
  MPI_Comm harness = MPI_COMM_NULL, world = MPI_COMM_NULL;
  int rank = 0, size = 1, level = MPI_THREAD_SINGLE;
  std::string before_init;
};
State state;

}  // namespace

MPI_Comm world() { return state.world; }
int rank() { return state.rank; }
int size() { return state.size; }
int thread_level() { return state.level; }
const std::string& before_init() { return state.before_init; }
void barrier() { MPI_Barrier(state.harness); }

std::string attempt(const std::function<void()>& body) {
  try {
    body();
  } catch (const muonrt::Error& error) {
    return muonrt::cat(muonrt::status_name(error.status()), ": ", error.message());
  }
  return "";
}

std::unique_ptr<muonrt::Transport> connect(int64_t timeout_ms, int64_t fragment_bytes) {
  const muonrt_transport_t table = muonrt::mpi::make_transport(world(), timeout_ms, fragment_bytes);
  auto out = std::make_unique<muonrt::CallbackTransport>(muonrt::read_transport(&table));
  out->set_timeout_ms(timeout_ms);
  return out;
}

std::string on_all(const std::string& problem) {
  const std::string mine =
      problem.empty() ? "" : muonrt::cat("rank ", state.rank, ": ", problem, "\n");
  return gather_texts(mine, true);
}

std::string gather_texts(const std::string& mine, bool to_all) {
  const int length = static_cast<int>(mine.size());
  std::vector<int> lengths(static_cast<size_t>(state.size)), begins(lengths.size());
  MPI_Allgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, state.harness);
  int total = 0;
  for (size_t r = 0; r < lengths.size(); ++r) {
    begins[r] = total;
    total += lengths[r];
  }
  std::string all(static_cast<size_t>(total), ' ');
  if (to_all) {
    MPI_Allgatherv(mine.data(), length, MPI_CHAR, all.data(), lengths.data(), begins.data(),
                   MPI_CHAR, state.harness);
  } else {
    MPI_Gatherv(mine.data(), length, MPI_CHAR, all.data(), lengths.data(), begins.data(), MPI_CHAR,
                0, state.harness);
  }
  return all;
}

bool same_on_all(uint64_t value) {
  uint64_t both[2] = {value, ~value}, most[2];
  MPI_Allreduce(both, most, 2, MPI_UINT64_T, MPI_MAX, state.harness);
  return most[0] == ~most[1];
}

int largest_of_all(int value) {
  int most = 0;
  MPI_Allreduce(&value, &most, 1, MPI_INT, MPI_MAX, state.harness);
  return most;
}

unsigned of_rank_0(unsigned value) {
  MPI_Bcast(&value, 1, MPI_UNSIGNED, 0, state.harness);
  return value;
}

void open(int* argc, char*** argv, int wanted_level) {
  state.before_init = attempt([] { muonrt::mpi::make_transport(MPI_COMM_WORLD, 1000, 1 << 20); });
  MPI_Init_thread(argc, argv, wanted_level, &state.level);
  MPI_Comm_dup(MPI_COMM_WORLD, &state.harness);
  MPI_Comm_dup(MPI_COMM_WORLD, &state.world);
  MPI_Comm_rank(state.harness, &state.rank);
  MPI_Comm_size(state.harness, &state.size);
  // Sets this handler only under MPICH (include/muonrt/mpi.h gives the reason), so that tests under
  // another MPI implementation cannot rely on the handler.
  char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
  int length = 0;
  MPI_Get_library_version(library, &length);
  if (std::string_view(library).starts_with("MPICH"))
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
}

std::string close() {
  MPI_Comm_free(&state.world);
  MPI_Comm_free(&state.harness);
  MPI_Finalize();
  return attempt([] { muonrt::mpi::make_transport(MPI_COMM_WORLD, 1000, 1 << 20); });
}

}  // namespace mpi_test
