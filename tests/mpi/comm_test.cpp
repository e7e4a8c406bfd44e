#include <catch2/catch.hpp>
#include <thread>

#include "base/text.hpp"
#include "comm/callback_transport.hpp"
#include "comm/host_comm.hpp"
#include "comm/mpi/mpi_transport.hpp"
#include "host/host_stream.hpp"
#include "mpi/harness.hpp"
#include "support/transport_checks.hpp"

using namespace muonrt;
using namespace mpi_test;
using namespace transport_test;
using Catch::Contains;

namespace {

std::string all_patterns(Transport& t) {
  std::string problems;
  int64_t index = 0;
  for (const Pattern& pattern : patterns()) {
    for (int turn = 0; turn < 3; ++turn) {
      problems += check_exchange(t, pattern, Catch::rngSeed(), index++);
    }
  }
  return problems;
}

class InlineStream final : public host::HostStream {
 public:
  void enqueue(host::Task task) override { task(); }
};

}  // namespace

TEST_CASE("mpi transport: every byte of every pattern arrives", "[mpi][comm]") {
  const auto t = connect();
  REQUIRE(on_all(attempt([&] {
            const std::string problems = all_patterns(*t);
            if (!problems.empty()) throw Error(Status::kInternal, problems);
          })) == "");
}

TEST_CASE("mpi transport: messages in pieces arrive whole and in order", "[mpi][comm]") {
  const auto t = connect(30'000, 100);
  std::string problems;
  const std::string thrown = attempt([&] {
    problems = all_patterns(*t);
    problems += check_allgather(*t, 2501, 3);
    problems += check_sparse_sequence(*t, 40, Catch::rngSeed());
  });
  REQUIRE(on_all(problems + thrown) == "");
}

TEST_CASE("mpi transport: pairs that meet in a sparse sequence meet in order", "[mpi][comm]") {
  const auto t = connect();
  std::string problems;
  const std::string thrown =
      attempt([&] { problems = check_sparse_sequence(*t, 100, Catch::rngSeed()); });
  REQUIRE(on_all(problems + thrown) == "");
}

TEST_CASE("mpi transport: messages too big for an eager send arrive whole", "[mpi][comm]") {
  const auto t = connect();
  const Pattern big{
      "big", [](int from, int to, int) -> int64_t { return (int64_t{1} << 20) + 13 * from + to; }};
  std::string problems;
  const std::string thrown = attempt([&] { problems = check_exchange(*t, big, 1, 0); });
  REQUIRE(on_all(problems + thrown) == "");
}

TEST_CASE("mpi transport: allgather and reductions give every rank the stated values",
          "[mpi][comm]") {
  const auto t = connect();
  std::string problems;
  const std::string thrown = attempt([&] {
    for (const int64_t bytes : {1, 8, 100'000}) problems += check_allgather(*t, bytes, 1);
    for (const int64_t n : {1, 6, 1000}) problems += check_reductions(*t, n, 2);
    t->reduce_sum(nullptr, nullptr, 0);
  });
  REQUIRE(on_all(problems + thrown) == "");
}

TEST_CASE("mpi transport: a duplicate is a channel of its own", "[mpi][comm]") {
  std::string problems;
  const std::string thrown = attempt([&] {
    auto parent = connect();
    const auto first = parent->duplicate();
    auto second = first->duplicate();
    std::string others;
    const auto work = [&] {
      others = attempt([&] { others = check_sparse_sequence(*second, 40, 1); }) + others;
    };
    if (thread_level() == MPI_THREAD_MULTIPLE) {
      std::thread beside(work);
      problems += check_sparse_sequence(*first, 40, 2);
      beside.join();
    } else {
      work();
      problems += check_sparse_sequence(*first, 40, 2);
    }
    problems += others;
    // Ranks destroy in different orders.
    rank() % 2 ? parent.reset() : second.reset();
    problems += check_allgather(*first, 10, 1);
  });
  REQUIRE(on_all(problems + thrown) == "");
}

TEST_CASE("mpi transport: is over the ranks of the communicator it was given", "[mpi][comm]") {
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
    problems += all_patterns(t) + check_reductions(t, 5, 1);
  });
  MPI_Comm_free(&half);
  REQUIRE(on_all(problems + thrown) == "");
}

TEST_CASE("mpi transport: leaves the caller's communicator as it was", "[mpi][comm]") {
  MPI_Errhandler before = MPI_ERRHANDLER_NULL, after = MPI_ERRHANDLER_NULL;
  MPI_Comm_get_errhandler(world(), &before);
  {
    const auto t = connect();
    REQUIRE(on_all(attempt([&] { all_patterns(*t); })) == "");
  }
  MPI_Comm_get_errhandler(world(), &after);
  int waiting = 0;
  MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, world(), &waiting, MPI_STATUS_IGNORE);
  REQUIRE(on_all(before == after ? "" : "another error handler") == "");
  REQUIRE(on_all(waiting ? "a message on the caller's communicator" : "") == "");
}

TEST_CASE("mpi transport: keeps to the caller's thread unless MPI allows any", "[mpi][comm]") {
  const auto t = connect();
  REQUIRE(t->name() == "mpi");
  REQUIRE(t->caller_thread_only() == (thread_level() < MPI_THREAD_MULTIPLE));
  HostComm comm(connect());
  REQUIRE(comm.stream_kind() ==
          (thread_level() < MPI_THREAD_MULTIPLE ? StreamKind::kCommOnCaller : StreamKind::kComm));
}

TEST_CASE("mpi transport: carries a communicator's operations", "[mpi][comm]") {
  HostComm comm(connect());
  InlineStream stream;
  const int next = (rank() + 1) % size(), previous = (rank() + size() - 1) % size();
  const int64_t mine = 100 + rank();
  int64_t got = 0, sum = 0;
  const float logit = static_cast<float>(rank());
  float most = -1;
  const std::string thrown = attempt([&] {
    const SendTo send{next, &mine, 8};
    const ReceiveFrom receive{previous, &got, 8};
    comm.exchange(stream, {&send, 1}, {&receive, 1});
    comm.reduce_sum(stream, &mine, &sum, 1);
    comm.reduce_max(stream, &logit, &most, 1);
  });
  REQUIRE(on_all(thrown) == "");
  REQUIRE(on_all(got == 100 + previous ? "" : "exchange") == "");
  REQUIRE(on_all(sum == 100 * size() + size() * (size() - 1) / 2 ? "" : "sum") == "");
  REQUIRE(on_all(most == static_cast<float>(size() - 1) ? "" : "max") == "");
  REQUIRE(on_all(comm.bytes_sent() == (size() > 1 ? 8 : 0) ? "" : "bytes") == "");
}

TEST_CASE("mpi transport: before MPI_Init, over no communicator or between two, it is refused",
          "[mpi][comm]") {
  REQUIRE_THAT(before_init(), Contains("INVALID_STATE") && Contains("not initialized"));
  REQUIRE_THAT(attempt([] { mpi::make_transport(MPI_COMM_NULL, 1000); }),
               Contains("INVALID_ARGUMENT") && Contains("MPI_COMM_NULL"));
  REQUIRE_THAT(attempt([] { mpi::make_transport(world(), 0); }), Contains("timeout 0 ms"));
  REQUIRE_THAT(attempt([] { mpi::make_transport(world(), INT64_MAX); }), Contains("out of range"));
  if (size() < 2) return;
  MPI_Comm half = MPI_COMM_NULL, inter = MPI_COMM_NULL;
  MPI_Comm_split(world(), rank() % 2, 0, &half);
  MPI_Intercomm_create(half, 0, world(), 1 - rank() % 2, 5, &inter);
  REQUIRE_THAT(attempt([&] { mpi::make_transport(inter, 1000); }), Contains("inter-communicator"));
  MPI_Comm_free(&inter);
  MPI_Comm_free(&half);
}
