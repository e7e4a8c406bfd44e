// Runs the scripts that every transport must pass, and tests the MPI transport.
#include <catch2/catch.hpp>
#include <thread>
#include <vector>

#include "base/text.hpp"
#include "comm/callback_transport.hpp"
#include "comm/host_comm.hpp"
#include "comm/mpi/mpi_transport.hpp"
#include "comm/transport_bootstrap.hpp"
#include "cuda/nccl/nccl_setup.hpp"
#include "mpi/harness.hpp"
#include "muonrt/mpi_comm.h"
#include "support/transport_checks.hpp"
#include "support/transport_scripts.hpp"

using namespace muonrt;
using namespace mpi_test;
using namespace transport_test;
using Catch::Contains;
using namespace muonrt::cuda;
using muonrt::cat;

namespace {

constexpr int64_t kLong = 60'000, kShort = 200;

std::string receive_from(Transport& t, int peer) {
  char byte = 0;
  const ReceiveFrom receive{peer, &byte, 1};
  return attempt([&] { t.exchange({}, {&receive, 1}); });
}

std::string unless_contains(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return "";
  return cat("'", text, "' does not contain '", part, "'");
}

/// Returns the problems of a new transport. An earlier transport that has failed must not affect
/// the new one.
std::string problems_of_fresh_start() {
  const auto t = connect();
  std::string problems;
  const std::string thrown =
      attempt([&] { problems = check_sparse_sequence(*t, 20, 1) + check_allgather(*t, 100, 1); });
  return on_all(problems + thrown);
}

/// Runs a script on all ranks and returns the problems.
std::string problems_of(const Script& script, int64_t fragment_bytes) {
  const auto t = connect(kLong, fragment_bytes);
  barrier();
  return on_all(problem_of(script, *t));
}

}  // namespace

TEST_CASE(
    "mpi transport: passes the scripts of every transport, with messages in one fragment or in "
    "many",
    "[mpi][comm]") {
  for (const int64_t fragment_bytes : {int64_t{256} << 20, int64_t{1000}}) {
    for (const Script& script : scripts()) {
      if (size() < script.fewest_ranks) continue;
      INFO(script.name << ", in fragments of " << fragment_bytes << " bytes");
      REQUIRE(problems_of(script, fragment_bytes) == "");
      REQUIRE(problems_of_fresh_start() == "");
    }
  }
}

TEST_CASE("mpi transport: has the ranks of the MPI communicator", "[mpi][comm]") {
  MPI_Comm half = MPI_COMM_NULL;
  MPI_Comm_split(world(), rank() % 2, -rank(), &half);
  std::string problems;
  const std::string thrown = attempt([&] {
    const muonrt_transport_t table = mpi::make_transport(half, 30'000);
    CallbackTransport t(read_transport(&table));
    int expected_rank = 0, expected_size = 0;
    MPI_Comm_rank(half, &expected_rank);
    MPI_Comm_size(half, &expected_size);
    if (t.rank() != expected_rank || t.size() != expected_size) problems = "rank or size";
    problems += check_sparse_sequence(t, 20, 1) + check_reductions(t, 5, 1);
  });
  MPI_Comm_free(&half);
  REQUIRE(on_all(problems + thrown) == "");
}

TEST_CASE("mpi transport: ranks may destroy parent and duplicates in different orders",
          "[mpi][comm]") {
  auto parent = connect();
  const auto first = parent->duplicate();
  auto second = first->duplicate();
  rank() % 2 ? parent.reset() : second.reset();
  std::string problems;
  const std::string thrown = attempt([&] { problems = check_allgather(*first, 10, 1); });
  REQUIRE(on_all(problems + thrown) == "");
}

TEST_CASE("mpi transport: does not change the caller's communicator", "[mpi][comm]") {
  MPI_Errhandler before = MPI_ERRHANDLER_NULL, after = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(world(), &before);
  {
    const auto t = connect();
    REQUIRE(on_all(check_sparse_sequence(*t, 20, 1)) == "");
  }
  MPI_Comm_get_errhandler(world(), &after);
  int waiting = 0;
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, world(), &waiting, MPI_STATUS_IGNORE);
  REQUIRE(on_all(before == after ? "" : "another error handler") == "");
  REQUIRE(on_all(waiting ? "a message on the caller's communicator" : "") == "");
}

TEST_CASE("mpi transport: uses only the caller's thread unless MPI allows all threads",
          "[mpi][comm]") {
  const auto t = connect();
  REQUIRE(t->name() == "mpi");
  REQUIRE(t->caller_thread_only() == (thread_level() < MPI_THREAD_MULTIPLE));
  HostComm comm(connect());
  REQUIRE(comm.stream_kind() ==
          (thread_level() < MPI_THREAD_MULTIPLE ? StreamKind::kCommOnCaller : StreamKind::kComm));
}

TEST_CASE("mpi transport: is rejected before MPI_Init, and for null and intercommunicators",
          "[mpi][comm]") {
  REQUIRE_THAT(before_init(), Contains("INVALID_STATE") && Contains("not initialized"));
  REQUIRE_THAT(attempt([] { mpi::make_transport(MPI_COMM_NULL, 1000); }),
               Contains("INVALID_ARGUMENT") && Contains("MPI_COMM_NULL"));
  REQUIRE_THAT(attempt([] { mpi::make_transport(world(), 0); }),
               Contains("timeout_ms is 0; pass 1 to"));
  REQUIRE_THAT(attempt([] { mpi::make_transport(world(), INT64_MAX); }), Contains("pass 1 to"));
  if (size() < 2) return;
  MPI_Comm half = MPI_COMM_NULL, inter = MPI_COMM_NULL;
  MPI_Comm_split(world(), rank() % 2, 0, &half);
  MPI_Intercomm_create(half, 0, world(), 1 - rank() % 2, 5, &inter);
  REQUIRE_THAT(attempt([&] { mpi::make_transport(inter, 1000); }), Contains("intercommunicator"));
  MPI_Comm_free(&inter);
  MPI_Comm_free(&half);
}

TEST_CASE("mpi abort: an abort from another thread before the operation reaches the peers",
          "[mpi][comm]") {
  if (size() < 2) return;
  const auto t = connect(kLong);
  barrier();
  if (rank() == 0) std::thread([&] { t->abort(Status::kAborted, "from another thread"); }).join();
  const std::string error = receive_from(*t, rank() == 0 ? 1 : 0);
  REQUIRE(on_all(unless_contains(error, "MUONRT_ERROR_ABORTED")) == "");
  REQUIRE(problems_of_fresh_start() == "");
}

TEST_CASE("mpi timeout: a late rank gets the error, although its peers' messages have arrived, too",
          "[mpi][comm]") {
  if (size() < 2) return;
  for (const bool collective : {true, false}) {
    const auto t = connect(kLong);
    if (rank() == 0) t->set_timeout_ms(kShort);
    barrier();
    if (rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(4 * kShort));
    std::vector<char> out(static_cast<size_t>(size())), in(out.size());
    std::vector<SendTo> sends;
    std::vector<ReceiveFrom> receives;
    for (int peer = rank() == 0 ? 1 : 0; peer < (rank() == 0 ? size() : 1); ++peer) {
      sends.push_back({peer, &out[static_cast<size_t>(peer)], 1});
      receives.push_back({peer, &in[static_cast<size_t>(peer)], 1});
    }
    const std::string error = attempt([&] {
      if (collective) {
        t->allgather(out.data(), in.data(), 1);
      } else {
        t->exchange(sends, receives);
      }
    });
    REQUIRE(on_all(unless_contains(error, "MUONRT_ERROR_TIMEOUT")) == "");
  }
  REQUIRE(problems_of_fresh_start() == "");
}

TEST_CASE("mpi faults: buffers may be reused after a timeout in the middle of long messages",
          "[mpi][comm]") {
  if (size() < 2) return;
  // Sending the second message takes much longer than its timeout.
  for (const auto& [timeout_ms, bytes] :
       {std::pair{kShort, int64_t{4} << 20}, {1, int64_t{16} << 20}}) {
    for (int turn = 0; turn < 3; ++turn) {
      const auto t = connect(kLong);
      if (rank() == 0) t->set_timeout_ms(timeout_ms);
      std::string error;
      barrier();
      if (rank() < 2) {
        auto out = std::make_unique<std::vector<char>>(static_cast<size_t>(bytes), 'o');
        auto in = std::make_unique<std::vector<char>>(static_cast<size_t>(2 * bytes), 'i');
        const int peer = 1 - rank();
        // Ranks 0 and 1 also expect a message that rank 2 never sends. With two ranks, rank 1 takes
        // the place of rank 2 and sends nothing.
        std::vector<ReceiveFrom> receives{{peer, in->data(), bytes}};
        if (size() > 2) receives.push_back({2, in->data() + bytes, bytes});
        const SendTo send{peer, out->data(), bytes};
        const std::span<const SendTo> sends(&send, rank() == 0 || size() > 2 ? 1 : 0);
        error = attempt([&] { t->exchange(sends, receives); });
        std::fill(out->begin(), out->end(), '?');
        out.reset();
        in.reset();
      }
      if (error.empty()) error = receive_from(*t, 0);
      REQUIRE(on_all(unless_contains(error, "MUONRT_ERROR_TIMEOUT")) == "");
    }
  }
  REQUIRE(problems_of_fresh_start() == "");
}

TEST_CASE("mpi abi: on error the communicator is null, and there is a message", "[mpi][comm]") {
  int no_comm = 0;
  auto* const not_null = reinterpret_cast<muonrt_comm_t*>(&no_comm);
  REQUIRE(muonrt_comm_create_mpi(nullptr, world(), 1000) == MUONRT_ERROR_INVALID_ARGUMENT);
  REQUIRE_THAT(muonrt_get_last_error(), Contains("comm is NULL"));
  muonrt_comm_t* comm = not_null;
  REQUIRE(muonrt_comm_create_mpi(&comm, MPI_COMM_NULL, 1000) == MUONRT_ERROR_INVALID_ARGUMENT);
  REQUIRE_THAT(muonrt_get_last_error(), Contains("MPI_COMM_NULL"));
  REQUIRE(comm == nullptr);
  comm = not_null;
  REQUIRE(muonrt_comm_create_mpi_address(&comm, nullptr, 1000) == MUONRT_ERROR_INVALID_ARGUMENT);
  REQUIRE_THAT(muonrt_get_last_error(), Contains("mpi_comm_address is NULL"));
  REQUIRE(comm == nullptr);
  REQUIRE(muonrt_comm_create_mpi(&comm, world(), -1) == MUONRT_ERROR_INVALID_ARGUMENT);
  REQUIRE_THAT(muonrt_get_last_error(), Contains("timeout_ms is -1"));
}

TEST_CASE("mpi nccl: an error on one rank ends the others' waits in NCCL, at any thread level",
          "[mpi][nccl]") {
  const auto bootstrap = muonrt::make_bootstrap(connect());
  std::string problem;
  const std::string error = attempt([&] {
    nccl_run_with_alarm(*bootstrap, false, [&](const muonrt::Bootstrap& alarm) {
      if (rank() == size() - 1) throw muonrt::Error(muonrt::Status::kDevice, "no way in");
      const auto deadline = muonrt::Deadline::in_ms(20'000);
      while (!deadline.passed())
        if (const auto pending = alarm.pending_error()) throw *pending;
      problem = "no error was received; ";
    });
  });
  const std::string words = cat(size() > 1 ? cat("rank ", size() - 1, ": ") : "", "no way in");
  // The bootstrap can still be used.
  char mine = 0;
  std::vector<char> all(static_cast<size_t>(size()));
  problem += attempt([&] { bootstrap->allgather(&mine, all.data(), 1); });
  if (error.find(cat("MUONRT_ERROR_DEVICE: ", words)) != 0) problem += cat("'", error, "'");
  REQUIRE(on_all(problem) == "");
}

TEST_CASE("mpi harness: all ranks learn the problem of one rank", "[mpi]") {
  const int last = size() - 1;
  REQUIRE(on_all("") == "");
  const std::string expected = "rank " + std::to_string(last) + ": odd\n";
  REQUIRE(on_all(rank() == last ? "odd" : "") == expected);
}

// CTest checks that this case fails, and checks its output.
TEST_CASE("mpi harness: a planted failure of rank 1", "[.planted]") {
  INFO("what only rank 1 knows");
  REQUIRE(rank() != 1);
}
