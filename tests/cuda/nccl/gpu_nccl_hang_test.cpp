// Tests the real NCCL when a caller's stream does not continue. On the emulated GPU,
// nccl_abort_test and nccl_steps_test run the same cases with a fake NCCL.

#include <catch2/catch.hpp>

#include "backend/cuda_comm.hpp"
#include "comm/transport_bootstrap.hpp"
#include "cuda/device/busy_stream.hpp"
#include "cuda/one_rank.hpp"
#include "support/world.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

std::unique_ptr<Comm> real(std::unique_ptr<Transport> transport) {
  return make_nccl_comm(make_bootstrap(std::move(transport)), {});
}

}  // namespace

TEST_CASE("nccl on a GPU: a communicator is destroyed while a stream hangs, and after it",
          "[cuda]") {
  if (is_emulated()) return;
  for (const bool behind : {false, true}) {
    CAPTURE(behind);
    Machine machine(world_device());
    int64_t* const in = machine.put(std::vector<int64_t>{5});
    int64_t* const out = machine.put(std::vector<int64_t>{9});
    ThreadGroup group(1);
    auto comm = real(group.transport(0));
    BusyStream theirs;
    theirs.work();
    if (behind) {
      machine.device->wait_caller_stream(machine.on(), theirs.handle, "test");
      comm->reduce_sum(machine.on(), in, out, 1);
    }
    comm.reset();
    CHECK_FALSE(theirs.has_ended());
    theirs.end();
    // The result of an aborted sum must not be written. However, the sum of a single rank may not
    // need an NCCL operation, so it may already be complete.
    const int64_t sum = machine.get_one(out);
    CHECK((sum == 9 || (behind && sum == 5)));
  }
}

TEST_CASE("nccl on a GPU: steps of any size after a stream that hangs end at the timeout",
          "[cuda]") {
  if (is_emulated()) return;
  for (const bool graphs : {false, true}) {
    CAPTURE(graphs);
    world::Case c;
    for (int i = 0; i < 300; ++i)  // makes several thousand launches
      c.params.push_back(world::matrix("m" + std::to_string(i), {16, 24}, {}));
    c.settings.groups = world::default_groups();
    c.settings.device = DeviceKind::kCuda;
    c.settings.timeout_ms = 3000;
    c.settings.graphs = graphs;
    c.settings.chunk_bytes = 1024;  // each chunk contains one matrix
    OneRank alone(c, real);
    BusyStream theirs;  // destroyed first, also after a failed check
    const auto before = alone.step(theirs.handle);
    CHECK((before ? before->message() : "") == "");
    theirs.work();
    const auto error = alone.step(theirs.handle);
    CHECK_FALSE(theirs.has_ended());
    REQUIRE(error);
    CHECK(error->status() == Status::kTimeout);
    CHECK(error->message().find("the work on the caller's stream") != std::string::npos);
    theirs.end();
  }
}
