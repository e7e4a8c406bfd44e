#include <catch2/catch.hpp>
#include <memory>

#include "comm/callback_transport.hpp"
#include "comm/host_comm.hpp"
#include "comm/self_transport.hpp"
#include "comm/thread_transport.hpp"
#include "comm/transport_bootstrap.hpp"
#include "support/callback_table.hpp"
#include "support/thread_ranks.hpp"
#include "unit/host/host_fixture.hpp"

using namespace muonrt;
using namespace transport_test;

namespace {

/// Runs each task immediately, inside enqueue().
class InlineStream final : public host::HostStream {
 public:
  void enqueue(host::Task task) override { task(); }
};

class OtherStream final : public Stream {};

/// The transport of rank 0 in a world of two. All its operations throw OUT_OF_MEMORY.
class FailingTransport final : public Transport {
 public:
  FailingTransport() : Transport(0, 2) {}
  ~FailingTransport() override { retire(); }
  std::string name() const override { return "failing"; }

 protected:
  void do_exchange(std::span<const SendTo>, std::span<const ReceiveFrom>) override {
    throw std::bad_alloc();
  }
  void do_allgather(const void*, void*, int64_t) override { throw std::bad_alloc(); }
  std::unique_ptr<Transport> do_duplicate() override { throw std::bad_alloc(); }
  void publish(const Error&) noexcept override {}
};

/// Returns the error that `function` throws.
template <class Function>
Error thrown_by(Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error;
  }
  return Error(Status::kOk, "nothing");
}

}  // namespace

TEST_CASE("comm: if a transport runs out of memory, the communicator ends with COMM",
          "[unit][comm]") {
  InlineStream stream;
  char byte = 0;
  const SendTo send{1, &byte, 1};
  int64_t word = 0;
  const auto check = [](const Error& error) {
    CHECK(error.status() == Status::kComm);
    CHECK(!error.is_remote());
    const std::string text = error.message();
    CHECK(text.find("host memory is exhausted") != std::string::npos);
  };
  HostComm exchanges(std::make_unique<FailingTransport>()),
      sums(std::make_unique<FailingTransport>());
  check(thrown_by([&] { exchanges.exchange(stream, {&send, 1}, {}); }));
  check(thrown_by([&] { sums.reduce_sum(stream, &word, &word, 1); }));
  check(thrown_by([&] {
    make_bootstrap(std::make_unique<FailingTransport>())->exchange({&send, 1}, {}, nullptr);
  }));
  check(thrown_by(
      [&] { make_bootstrap(std::make_unique<FailingTransport>())->reduce_sum(&word, &word, 1); }));
  // allgather is called when optimizers are created, saved and loaded. Its failure also ends the
  // communicator.
  HostComm gathers(std::make_unique<FailingTransport>());
  check(thrown_by([&] { gathers.allgather(&byte, &byte, 1); }));
  check(thrown_by(
      [&] { make_bootstrap(std::make_unique<FailingTransport>())->allgather(&byte, &byte, 1); }));
  check(thrown_by([&] { HostComm(std::make_unique<FailingTransport>()).duplicate(); }));
  check(thrown_by([&] { make_bootstrap(std::make_unique<FailingTransport>())->duplicate(); }));
}

TEST_CASE("host communicator: operations run in the order of its stream, and are counted",
          "[unit][comm][tsan]") {
  ThreadGroup group(3);
  const auto errors = on_ranks(3, [&](int rank) {
    HostComm comm(group.transport(rank));
    comm.set_timeout_ms(60'000);
    host_test::OnHost host(1, StreamKind::kComm);
    Stream& stream = *host.stream;
    const int next = (rank + 1) % 3, previous = (rank + 2) % 3;
    const int64_t mine[2] = {rank + 1, 10 * (rank + 1)};
    int64_t from[2] = {}, own = 0, sum[1] = {};
    const float logit[1] = {static_cast<float>(rank)};
    float most[1] = {};
    const SendTo sends[] = {{next, &mine[0], 8}, {rank, &mine[1], 8}};
    const ReceiveFrom receives[] = {{rank, &own, 8}, {previous, &from[0], 8}};
    comm.exchange(stream, sends, receives);
    const SendTo onward{next, &from[0], 8};  // sends the bytes that the first exchange has received
    const ReceiveFrom second{previous, &from[1], 8};
    comm.exchange(stream, {&onward, 1}, {&second, 1});
    comm.reduce_sum(stream, &from[1], sum, 1);
    comm.reduce_max(stream, logit, most, 1);
    comm.exchange(stream, {}, {});
    host.finish();

    require_none(own == 10 * (rank + 1) ? "" : "own message");
    require_none(from[0] == previous + 1 ? "" : "first exchange");
    // Each exchange sends the bytes to the next rank. After two exchanges among three ranks, this
    // rank has the bytes of its next rank.
    require_none(from[1] == next + 1 ? "" : "second exchange");
    require_none(sum[0] == 6 ? "" : "sum");
    require_none(most[0] == 2.0f ? "" : "max");
    require_none(comm.bytes_sent() == 16 ? "" : "bytes_sent() counts the rank's message to itself");
    require_none(comm.exchanges() == 3 ? "" : "exchanges");
    require_none(comm.describe() == "thread, 3 ranks" ? "" : comm.describe());

    char all[3] = {};
    const char letter = static_cast<char>('a' + rank);
    comm.allgather(&letter, all, 1);
    require_none(std::string(all, 3) == "abc" ? "" : "allgather");
    const auto duplicate = comm.duplicate();
    require_none(duplicate->rank() == rank && duplicate->size() == 3 ? "" : "duplicate");
    require_none(duplicate->bytes_sent() == 0 && duplicate->exchanges() == 0 ? "" : "counters");
  });
  REQUIRE(text_of(errors) == "");
}

TEST_CASE(
    "host communicator: an operation that fails reports the error to the peers and its stream",
    "[unit][comm][tsan]") {
  ThreadGroup group(2);
  const auto errors = on_ranks(2, [&](int rank) {
    HostComm comm(group.transport(rank));
    host_test::OnHost host(1, StreamKind::kComm);
    char byte = 0;
    const SendTo bad{7, &byte, 1};
    const ReceiveFrom never{0, &byte, 1};
    if (rank == 0) comm.exchange(*host.stream, {&bad, 1}, {});
    if (rank == 1) comm.exchange(*host.stream, {}, {&never, 1});
    const Error error = thrown_by([&] { host.finish(); });
    require_none(comm.exchanges() == 0 && comm.bytes_sent() == 0 ? "" : "counted a failure");
    throw Error(error);
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    REQUIRE(error->status() == Status::kInvalidArgument);
    REQUIRE_THAT(error->message(), Catch::Contains("rank 7 does not exist"));
  }
}

TEST_CASE("host communicator: abort ends a waiting task", "[unit][comm][tsan]") {
  ThreadGroup group(2);
  HostComm comm(group.transport(0)), peer(group.transport(1));
  host_test::OnHost host(1, StreamKind::kComm);
  char byte = 0;
  const ReceiveFrom never{1, &byte, 1};
  comm.exchange(*host.stream, {}, {&never, 1});
  comm.abort(Status::kAborted, "enough");
  const Error error = thrown_by([&] { host.finish(); });
  REQUIRE(error.status() == Status::kAborted);
  REQUIRE(error.message() == "enough");
}

TEST_CASE("host communicator: needs a stream on the caller's thread if its transport does",
          "[unit][comm]") {
  REQUIRE(HostComm(make_self_transport()).stream_kind() == StreamKind::kComm);
  muonrt_transport_t table;
  muonrt_transport_init(&table);
  table.rank = 0;
  table.size = 1;
  table.caller_thread_only = 1;
  table.exchange = callback_table::exchange;
  table.allgather = callback_table::allgather;
  HostComm comm(std::make_unique<CallbackTransport>(read_transport(&table)));
  REQUIRE(comm.stream_kind() == StreamKind::kCommOnCaller);
}

TEST_CASE("host communicator: rejects the stream of another device", "[unit][comm]") {
  HostComm comm(make_self_transport());
  OtherStream other;
  REQUIRE_THROWS_AS(comm.exchange(other, {}, {}), Error);
  InlineStream stream;
  comm.exchange(stream, {}, {});
  REQUIRE(comm.exchanges() == 1);
}

TEST_CASE("host communicator: an abort clears the flag of a vote that cannot be sent any more",
          "[unit][comm]") {
  InlineStream stream;
  HostComm comm(make_self_transport());
  int64_t entered = 1;
  comm.clear_if_aborted(stream, &entered);
  CHECK(entered == 1);
  comm.abort(Status::kAborted, "enough");
  comm.clear_if_aborted(stream, &entered);
  CHECK(entered == 0);
  int64_t word = 0;
  CHECK(thrown_by([&] { comm.reduce_sum(stream, &word, &word, 1); }).status() == Status::kAborted);
}
