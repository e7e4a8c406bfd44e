// Tests the status of a step that NCCL has aborted. If this rank's vote cannot have reached another
// rank, no rank has changed anything. Otherwise the status is UNDECIDED.

#include <atomic>
#include <catch2/catch.hpp>

#include "cuda/device/cuda_device.hpp"
#include "cuda/kernels/kernels.hpp"
#include "cuda/nccl/nccl_ranks.hpp"
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

/// Runs one step on each rank and returns the errors. Requires that no step has changed anything.
/// @param before, after  called on each rank before and after its step.
std::vector<std::optional<Error>> end_of_steps(int64_t timeout_ms,
                                               const std::function<void(int)>& before,
                                               const std::function<void()>& after) {
  fake_nccl::reset();
  ThreadGroup group(3);
  std::vector<std::optional<Error>> out(3);
  const auto errors = on_ranks(3, [&](int number) {
    auto transport = group.transport(number);
    transport->set_timeout_ms(kLong);
    const auto comm = nccl_over_fake(std::move(transport));
    Machine machine(world_device());
    DeviceMirror mirror(machine);
    world::Case mine = three_ranks();
    mine.settings.timeout_ms = timeout_ms;
    world::Rank rank(mine, *comm, world_device, &mirror);
    const auto snapshot = [&] {
      world::Tensors t;
      std::vector<std::vector<bool>> seen;
      rank.add_to(t, seen);
      return t;
    };
    const world::Tensors unchanged = snapshot();
    before(number);
    StepReport report;
    auto& error = out[static_cast<size_t>(number)];
    error = capture_error([&] { rank.step(0, report); });
    after();
    if (!error || rank.optimizer().steps() != 0) require_none("the step was counted");
    if (!(snapshot() == unchanged)) require_none("the step was committed");
  });
  CHECK(text_of(errors) == "");
  for (const auto& e : out) REQUIRE(e);
  return out;
}

}  // namespace

TEST_CASE(
    "nccl vote: a step that NCCL ends commits nothing, and is undecided if peers may have voted",
    "[nccl]") {
  std::atomic<int> ended = 0;
  const auto no_peer = [&](int rank) {
    while (rank == 2 && ended < 2) std::this_thread::yield();
  };
  // The streams of two ranks have entered the sum, but the stream of the third rank never enters
  // it. The fake NCCL then leaves a result that looks like the consent of all ranks.
  const auto stalled_by = [](int by) {
    return [by](int rank) {
      if (rank == by) fake_nccl::stall_reductions(1, true);
    };
  };
  const auto failed = [](int rank) {
    if (rank == 0) fake_nccl::fail(0);
  };
  struct Row {
    const char* what;
    int64_t timeout_ms;
    std::function<void(int)> plant;
    std::optional<Status> all;
  };
  for (const Row& row :
       {Row{"a peer never begins the step", 700, no_peer, Status::kTimeout},
        {"a reduction is cut short by rank 0", 1500, stalled_by(0), Status::kUndecided},
        {"by rank 1", 1500, stalled_by(1), Status::kUndecided},
        {"NCCL reports an error", kLong, failed, {}}}) {
    INFO(row.what);
    const auto errors = end_of_steps(row.timeout_ms, row.plant, [&] { ++ended; });
    fake_nccl::stall_reductions(1, false);
    INFO(text_of(errors));
    for (const auto& e : errors) CHECK((!row.all || e->status() == *row.all));
    if (!row.all) CHECK(says(errors[0], Status::kComm, "NCCL failed in"));
    if (row.all) check_rules();
  }
}

TEST_CASE("nccl vote: the flag of an entered vote is cleared only if the communicator was closed",
          "[nccl][ptx]") {
  fake_nccl::reset();
  ThreadGroup group(1);
  const auto comm = nccl_over_fake(group.transport(0));
  Machine machine(world_device());
  const auto flags = Buffer::shared(*machine.device, 2 * sizeof(int64_t));
  auto* const entered = flags.as<int64_t>();
  entered[0] = entered[1] = 7;
  comm->clear_if_aborted(machine.on(), entered);
  machine.finish();
  CHECK(entered[0] == 7);
  comm->abort(Status::kAborted, "enough");
  comm->clear_if_aborted(machine.on(), entered);
  machine.finish();
  CHECK(entered[0] == 0);
  CHECK(entered[1] == 7);
}

TEST_CASE("nccl vote: a result is copied completely or not at all", "[nccl][ptx]") {
  Machine machine(world_device());
  constexpr int64_t kMany = 700;  // more numbers than a thread block has threads
  const std::vector<int64_t> from(kMany, 3), old(kMany, 4);
  const auto closed = Buffer::shared(*machine.device, sizeof(int32_t));
  for (const bool is_closed : {false, true}) {
    *closed.as<int32_t>() = is_closed;
    auto* const to = machine.put(old);
    cuda::copy_unless_closed(machine.put(from), to, kMany, closed.as<int32_t>(),
                             cuda::handle_of(machine.on()));
    CHECK(machine.get(to, kMany) == (is_closed ? old : from));
  }
}
