#include <catch2/catch.hpp>
#include <set>

#include "comm/host_comm.hpp"
#include "cuda/nccl/nccl_ranks.hpp"
#include "support/bits_cases.hpp"
#include "support/forwarding_comm.hpp"

// Tests a step on GPUs that fails during its vote on some ranks. `recover` must commit the update
// that is staged in the memory of these ranks, as a step without the fault does.

using namespace muonrt;
using namespace cuda_test;

namespace {

/// A communicator whose n-th sum never arrives on this rank, although the other ranks receive this
/// rank's part. This happens on a GPU if its streams continue after an aborted reduction.
class LosingComm final : public ForwardingComm {
 public:
  LosingComm(std::unique_ptr<Comm> inner, int64_t lost, std::shared_ptr<Buffer> scratch)
      : ForwardingComm(std::move(inner)), lost_(lost), scratch_(std::move(scratch)) {}
  void reduce_sum(Stream& stream, const int64_t* in, int64_t* out, int64_t n) override {
    const bool loses = sums_++ == lost_;
    inner_->reduce_sum(stream, in, loses ? scratch_->as<int64_t>() : out, n);
    if (loses) error_ = Error(Status::kComm, "planted: the sum was lost");
  }
  std::unique_ptr<Comm> duplicate() override {
    return std::make_unique<LosingComm>(inner_->duplicate(), lost_, scratch_);
  }
  // The other ranks are not notified, because they must receive the vote sum first.
  void abort(Status, const std::string&) noexcept override {}
  std::optional<Error> error() const override { return error_ ? error_ : inner_->error(); }

 private:
  int64_t lost_, sums_ = 0;
  std::shared_ptr<Buffer> scratch_;
  std::optional<Error> error_;
};

/// Returns a case with three ranks, in which owners store the momentum and AdamW's slices.
world::Case case_of_partial() {
  bits::Factors f;
  f.mesh = 3;
  f.window = 2;
  world::Case c = bits::make(f, false, 2);
  for (world::Param& p : c.params) {
    p.partial_grads = 3;
    p.placements = {{PlacementKind::kPartial, 0, 1}};
  }
  return c;
}

}  // namespace

TEST_CASE("nccl: ranks that did not receive the vote sum follow those that did", "[nccl]") {
  const world::Case c = case_of_partial();
  fake_nccl::reset();
  const world::Tensors expected = run_world(c, nccl_over_fake);
  for (const std::set<int>& cut_off : {std::set<int>{1}, {0, 2}}) {
    fake_nccl::reset();
    ThreadGroup group(3), second(3);
    world::Tensors got;
    std::vector<std::vector<bool>> seen;
    std::mutex mutex;
    const auto errors = on_ranks(3, [&](int number) {
      Machine machine(world_device());
      auto transport = group.transport(number);
      transport->set_timeout_ms(kLong);
      auto comm = nccl_over_fake(std::move(transport));
      if (cut_off.count(number))
        comm = std::make_unique<LosingComm>(
            std::move(comm), c.steps - 1,
            std::make_shared<Buffer>(*machine.device, int64_t{sizeof(Vote)}));
      DeviceMirror mirror(machine);
      world::Rank rank(c, *comm, world_device, &mirror);
      StepReport report;
      Status ended = Status::kOk;
      for (int step = 0; step < c.steps; ++step) {
        try {
          rank.step(step, report);
        } catch (const Error& e) {
          ended = e.status();
        }
      }
      if (ended != (cut_off.count(number) ? Status::kUndecided : Status::kOk))
        require_none(cat("the step ended with ", status_name(ended)));
      if (rank.optimizer().steps() != c.steps - (cut_off.count(number) ? 1 : 0))
        require_none("steps before");
      HostComm survivors(second.transport(2 - number));
      const Recovery settled = rank.optimizer().recover(survivors);
      if (settled.outcome != Recovery::Outcome::kRolledForward || settled.steps != c.steps ||
          rank.optimizer().steps() != c.steps)
        require_none("settled otherwise");
      const std::lock_guard lock(mutex);
      if (!rank.add_to(got, seen)) require_none("replicas differ");
    });
    CHECK(text_of(errors) == "");
    CHECK((got == expected));
  }
}
