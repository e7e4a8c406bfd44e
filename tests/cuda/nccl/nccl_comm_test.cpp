#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "comm/callback_transport.hpp"
#include "control.hpp"
#include "cuda/nccl/nccl_caller_comm.hpp"
#include "cuda/nccl/nccl_capture.hpp"
#include "support/bits_cases.hpp"
#include "support/callback_table.hpp"

// Tests the NCCL communicator with a fake NCCL and the emulated GPU.

using namespace muonrt;
using namespace cuda_test;

namespace {

world::Case small_case(size_t mesh, int scheme, bool eager) {
  bits::Factors f;
  f.mesh = mesh;
  f.scheme = scheme;
  f.commit = eager;
  f.window = 2;
  return bits::make(f, false, 2);
}

}  // namespace

TEST_CASE("nccl: an exchange is one group without empty messages, and its bytes arrive", "[nccl]") {
  std::vector<std::string> logs[3];
  const auto errors = on_nccl(3, kLong, [&](Comm& comm, Machine& machine) {
    const int rank = comm.rank();
    const auto message = [](int from, int to) {
      return values(static_cast<uint64_t>(from * 10 + to), DType::kF32, 16 + from + to);
    };
    // The messages are 0 -> 1, 1 -> 0, 2 -> 0 and 2 -> 2. Rank 1 receives nothing from rank 2.
    const std::vector<std::pair<int, int>> pairs = {{0, 1}, {1, 0}, {2, 0}, {2, 2}};
    std::vector<SendTo> sends;
    std::vector<ReceiveFrom> receives;
    for (const auto& [from, to] : pairs) {
      const Bytes bytes = message(from, to);
      if (from == rank) sends.push_back({to, machine.put(bytes), std::ssize(bytes)});
      if (to == rank)
        receives.push_back({from, machine.put(Bytes(bytes.size())), std::ssize(bytes)});
    }
    comm.exchange(machine.on(), sends, receives);
    machine.finish();
    for (const ReceiveFrom& r : receives) {
      const Bytes got = machine.get(static_cast<const unsigned char*>(r.data), r.bytes);
      if (difference(got, message(r.peer, rank)) != -1) require_none("bytes differ");
    }
    logs[rank] = fake_nccl::log(rank);
    if (comm.exchanges() != 1) require_none("exchanges");
    const int64_t sent[] = {17 * 4, 17 * 4, 18 * 4};
    if (comm.bytes_sent() != sent[rank]) require_none("bytes_sent");
    char all[3];
    comm.allgather("", all, 1);
  });
  CHECK(text_of(errors) == "");
  CHECK(logs[0] == std::vector<std::string>{"group: send 1 x 68 receive 1 x 68 receive 2 x 72"});
  CHECK(logs[1] == std::vector<std::string>{"group: send 0 x 68 receive 0 x 68"});
  CHECK(logs[2] == std::vector<std::string>{"group: send 0 x 72 send 2 x 80 receive 2 x 80"});
  check_rules();
}

TEST_CASE("nccl: reductions are bitwise identical to the host's", "[nccl][ptx]") {
  const auto errors = on_nccl(4, kLong, [&](Comm& comm, Machine& machine) {
    const int rank = comm.rank();
    constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
    auto* const integers = machine.put(std::vector<int64_t>{1, rank, kMax});
    comm.reduce_sum(machine.on(), integers, integers, 3);
    std::vector<float> mine = {static_cast<float>(-rank), rank == 2 ? std::nanf("") : 9.0f,
                               rank == 1 ? 0.0f : -0.0f, -INFINITY};
    auto* const floats = machine.put(mine);
    comm.reduce_max(machine.on(), floats, floats, 4);
    machine.finish();
    const auto sums = machine.get(integers, 3);
    if (sums != std::vector<int64_t>{4, 6, -4}) require_none("sum");
    const auto most = machine.get(floats, 4);
    if (most[0] != 0.0f || !std::isnan(most[1]) || std::signbit(most[2]) || most[3] != -INFINITY)
      require_none("maximum");
    char all[4];
    comm.allgather("", all, 1);
  });
  CHECK(text_of(errors) == "");
  check_rules();
}

TEST_CASE("nccl: steps of 1 to 4 ranks are bitwise identical to one rank's, on one GPU and on two",
          "[nccl]") {
  fake_nccl::reset();
  const world::Tensors alone = run_world(small_case(0, 0, false), nccl_over_fake);
  struct Row {
    size_t mesh;
    int scheme;
    bool eager, two_gpus = false;
    bool omits = false;  // whether inactive parameters are omitted from exchanges
    bool graphs = false;
  };
  for (const Row& row : {Row{1, 0, false},
                         {3, 2, true, false, true, true},
                         {6, 1, false, false, true, true},
                         {4, 5, true},
                         {1, 0, false, true, true},
                         {3, 0, true, true}}) {
    world::Case c = small_case(row.mesh, row.scheme, row.eager);
    c.settings.omit_inactive = row.omits;
    c.settings.graphs = row.graphs;
    INFO(c.describe() << (row.two_gpus ? ", two GPUs" : "") << (row.omits ? ", omits" : "")
                      << (row.graphs ? ", graphs" : ""));
    const auto device_of = [&](int rank) { return row.two_gpus ? (rank + 1) % 2 : 0; };
    const auto make = [&](std::unique_ptr<Transport> transport) {
      NcclOptions options;
      options.device_index = device_of(transport->rank());
      return over_fake(std::move(transport), options);
    };
    CHECK(run_world(c, make, device_of) == alone);
  }
  const auto counts = fake_nccl::counts();
  CHECK(counts.aborted == 0);
  CHECK(counts.destroyed == counts.made);
  check_rules();
  // Everything except products is bitwise identical to the results of the host.
  const world::Case c = small_case(0, 0, false);
  const world::Tensors host = world::run(c).tensors;
  for (size_t i = 0; i < c.params.size(); ++i) {
    INFO(c.params[i].name);
    CHECK(alone.momentum[i] == host.momentum[i]);
    CHECK(alone.variance[i] == host.variance[i]);
    if (c.params[i].role == Role::kAdamW) CHECK(alone.params[i] == host.params[i]);
  }
}

TEST_CASE("nccl: a captured group to itself is replayed with new bytes", "[nccl]") {
  fake_nccl::reset();
  check_captured_exchange(fake_nccl::api());
  check_rules();
}

TEST_CASE("nccl: operations on a captured stream are rejected, and the capture stays valid",
          "[nccl]") {
  const auto errors = on_nccl(1, kLong, [&](Comm& comm, Machine& machine) {
    check_capture_rejected(comm, machine, "nccl: the stream is being captured");
  });
  CHECK(text_of(errors) == "");
  check_rules();
}

TEST_CASE("nccl: an operation without a peer ends at the timeout, on all ranks", "[nccl]") {
  std::atomic<int> ended = 0;
  const auto errors = on_nccl(3, 300, [&](Comm& comm, Machine& machine) {
    auto* const value = machine.put(std::vector<int64_t>{5});
    while (comm.rank() == 2 && ended < 2) std::this_thread::yield();
    comm.reduce_sum(machine.on(), value, value, 1);
    while (!comm.error()) std::this_thread::yield();
    ++ended;
    machine.finish();
    if (machine.get_one(value) != 5) require_none("an aborted sum was copied");
    throw *comm.error();
  });
  for (const auto& e : errors) CHECK(says(e, Status::kTimeout, "reduce_sum #0 on rank "));
  check_rules();
}

TEST_CASE("nccl: messages in flight are limited, and all complete after a slow rank arrives",
          "[nccl]") {
  const auto errors = on_nccl(3, kLong, [&](Comm& comm, Machine& machine) {
    // The other ranks enqueue as many operations in advance as the limit allows.
    if (comm.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    exchange_with_all(comm, machine, 150);
    machine.finish();
    barrier(comm);
  });
  CHECK(text_of(errors) == "");
  for (int rank = 0; rank < 2; ++rank) {
    CHECK(fake_nccl::max_in_flight(rank) > 100);
    CHECK(fake_nccl::max_in_flight(rank) <= 256);
  }
  check_rules();
}

TEST_CASE("nccl: a rank that waits for messages in flight receives the error of a lost peer",
          "[nccl]") {
  std::atomic<bool> ended = false;
  const auto errors = on_nccl(2, 600, [&](Comm& comm, Machine& machine) {
    while (comm.rank() == 1 && !ended) std::this_thread::yield();
    if (comm.rank() == 1) barrier(comm);
    try {
      exchange_with_all(comm, machine, 300);
    } catch (const Error&) {
      ended = true;
      throw;
    }
  });
  INFO(text_of(errors));
  CHECK(says(errors[0], Status::kTimeout, "exchange #0 on rank 0"));
  check_rules();
}

TEST_CASE("nccl: a lost GPU ends watched operations and waits for capacity immediately", "[nccl]") {
  constexpr int kFit = 4;  // number of operations of 64 messages each that fit
  for (const int operations : {kFit - 1, kFit + 1}) {
    INFO(operations << " operations");
    fake_nccl::reset();
    ThreadGroup group(1);
    const auto errors = on_ranks(1, [&](int rank) {
      NcclOptions options;
      options.max_ctas = 64;
      const auto comm = over_fake(timed(group, rank, kLong), options);
      Machine machine(world_device());
      auto* const value = machine.put(std::vector<int64_t>{3});
      emulator::hold(true);
      emulator::fail_next_kernel();
      std::thread losing([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
        emulator::hold(false);
      });
      std::optional<Error> error;
      try {
        for (int i = 0; i < operations; ++i) comm->reduce_sum(machine.on(), value, value, 1);
        while (!comm->error()) std::this_thread::yield();
        error = comm->error();
      } catch (const Error& e) {
        error = e;
      }
      losing.join();
      emulator::forget_failure();
      throw *error;
    });
    INFO(text_of(errors));
    CHECK(says(errors[0], Status::kDevice, "work on CUDA device 0 failed: cudaErrorLaunchFailure"));
  }
}

TEST_CASE("nccl: an abort on one rank ends the operations of all ranks, from every source",
          "[nccl]") {
  // Aborts the communicator, or the transport that the communicator was created from, or aborts
  // with a table of the caller's functions.
  enum class Way { kComm, kTransport, kTable };
  for (const Way way : {Way::kComm, Way::kTransport, Way::kTable}) {
    CAPTURE(static_cast<int>(way));
    fake_nccl::reset();
    std::atomic<int> destroyed = 0;
    ThreadGroup group(2);
    const auto errors = on_ranks(2, [&](int rank) {
      auto transport = timed(group, rank, kLong);
      std::unique_ptr<Transport> inner;
      if (way == Way::kTable) {
        const auto table = callback_table::table_over(std::move(transport), destroyed);
        inner = std::make_unique<CallbackTransport>(read_transport(&table));
        inner->set_timeout_ms(kLong);
      } else {
        inner = transport->duplicate();
      }
      const auto comm = nccl_over_fake(std::move(inner));
      Machine machine(world_device());
      auto* const value = machine.put(std::vector<int64_t>{3});
      comm->reduce_sum(machine.on(), value, value, 1);
      if (machine.get_one(value) != 6) require_none("sum");
      if (rank == 1 && way == Way::kTransport)
        transport->abort_with_duplicates(Status::kAborted, "enough");
      if (rank == 1 && way != Way::kTransport) comm->abort(Status::kAborted, "enough");
      while (true) {  // ends when the reduction throws
        comm->reduce_sum(machine.on(), value, value, 1);
        machine.finish();
      }
    });
    INFO(text_of(errors));
    for (const auto& e : errors) CHECK(says(e, Status::kAborted, "enough"));
  }
}
