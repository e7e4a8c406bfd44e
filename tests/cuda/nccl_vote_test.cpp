// What a step that NCCL has ended says of its vote: "nothing has changed anywhere" where this
// rank's ballot cannot have reached a peer, UNDECIDED where it can.

#include <atomic>
#include <catch2/catch.hpp>

#include "cuda/device/cuda_device.hpp"
#include "cuda/kernels/kernels.hpp"
#include "cuda/nccl_ranks.hpp"
#include "optimizer/agreement.hpp"
#include "support/bits_cases.hpp"

using namespace muonrt;
using namespace cuda_test;

namespace {

world::Case three_ranks() {
  bits::Factors f;
  f.mesh = 3;
  f.window = 2;
  return bits::make(f, false, 2);
}

/// One step of each rank, as it ended. @param before  what a rank does ahead of its own.
std::vector<Status> end_of_steps(int64_t timeout_ms, const std::function<void(int)>& before,
                                 const std::function<void(int)>& after) {
  fake_nccl::reset();
  ThreadGroup group(3);
  std::vector<Status> out(3);
  const auto errors = on_ranks(3, [&](int number) {
    auto transport = group.transport(number);
    transport->set_timeout_ms(kLong);
    const auto comm = plain(std::move(transport));
    Machine machine(world_device());
    DeviceMirror mirror(machine);
    world::Case mine = three_ranks();
    mine.settings.timeout_ms = timeout_ms;
    world::Rank rank(mine, *comm, world_device, &mirror);
    before(number);
    StepReport report;
    const auto error = error_of([&] { rank.step(0, report); });
    out[static_cast<size_t>(number)] = error ? error->status() : Status::kOk;
    after(number);
    if (rank.optimizer().steps() != (error ? 0 : 1)) require_none("steps");
  });
  CHECK(text_of(errors) == "");
  return out;
}

}  // namespace

TEST_CASE("nccl vote: ranks whose peer never comes to the step know that nobody has voted",
          "[nccl]") {
  std::atomic<int> ended = 0;
  const auto status = end_of_steps(
      700,
      [&](int rank) {
        while (rank == 2 && ended < 2) std::this_thread::yield();
      },
      [&](int) { ++ended; });
  for (const Status s : status) CHECK(s == Status::kTimeout);
  check_rules();
}

TEST_CASE("nccl vote: a ballot that peers may have is not denied", "[nccl]") {
  const auto status = end_of_steps(
      1500,
      [](int rank) {
        if (rank == 0) fake_nccl::stall_reductions(1, true);
      },
      [](int) {});
  for (const Status s : status) CHECK(s == Status::kUndecided);
  check_rules();
}

TEST_CASE("nccl vote: entering it is taken back where the communicator was closed, else it stands",
          "[nccl][ptx]") {
  fake_nccl::reset();
  ThreadGroup group(1);
  const auto comm = plain(group.transport(0));
  Machine machine(world_device());
  const auto flags = Buffer::shared(*machine.device, 2 * sizeof(int64_t));
  auto* const entered = flags.as<int64_t>();
  entered[0] = entered[1] = 7;
  comm->retract(machine.on(), entered);
  machine.finish();
  CHECK(entered[0] == 7);
  comm->abort(Status::kAborted, "enough");
  comm->retract(machine.on(), entered);
  machine.finish();
  CHECK(entered[0] == 0);
  CHECK(entered[1] == 7);
}

TEST_CASE("nccl vote: of a result all is delivered, or nothing", "[nccl][ptx]") {
  Machine machine(world_device());
  constexpr int64_t kMany = 700;  // more than a block has threads
  const std::vector<int64_t> from(kMany, 3), old(kMany, 4);
  const auto closed = Buffer::shared(*machine.device, sizeof(int32_t));
  for (const bool is_closed : {false, true}) {
    *closed.as<int32_t>() = is_closed;
    auto* const to = machine.put(old);
    cuda::deliver(machine.put(from), to, kMany, closed.as<int32_t>(),
                  cuda::handle_of(machine.on()));
    CHECK(machine.get(to, kMany) == (is_closed ? old : from));
  }
}
