#include <catch2/catch.hpp>
#include <set>

#include "comm/host_comm.hpp"
#include "cuda/nccl_ranks.hpp"
#include "support/bits_cases.hpp"

// A step on GPUs that ends inside its vote on some ranks: `recover` commits what lies in their
// memory, as a step without the fault would have.

using namespace muonrt;
using namespace cuda_test;

namespace {

/// A communicator whose n-th sum never arrives here, though the peers get this rank's part: what an
/// aborted reduction leaves on a GPU, whose streams go on.
class LosingComm final : public Comm {
 public:
  LosingComm(std::unique_ptr<Comm> inner, int64_t lost, std::shared_ptr<Buffer> scratch)
      : inner_(std::move(inner)), lost_(lost), scratch_(std::move(scratch)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string describe() const override { return inner_->describe(); }
  StreamKind stream_kind() const override { return inner_->stream_kind(); }
  bool serves(const Device& device) const override { return inner_->serves(device); }
  int occupied_sms() const override { return inner_->occupied_sms(); }
  void exchange(Stream& stream, std::span<const SendTo> sends,
                std::span<const ReceiveFrom> receives) override {
    inner_->exchange(stream, sends, receives);
  }
  void reduce_max(Stream& stream, const float* in, float* out, int64_t n) override {
    inner_->reduce_max(stream, in, out, n);
  }
  void reduce_sum(Stream& stream, const int64_t* in, int64_t* out, int64_t n) override {
    const bool loses = sums_++ == lost_;
    inner_->reduce_sum(stream, in, loses ? scratch_->as<int64_t>() : out, n);
    if (loses) error_ = Error(Status::kComm, "planted: the sum was lost");
  }
  void prepare_exchange(const Messages& messages) override { inner_->prepare_exchange(messages); }
  void prepare_reduction(int64_t bytes) override { inner_->prepare_reduction(bytes); }
  void allgather(const void* mine, void* all, int64_t bytes) override {
    inner_->allgather(mine, all, bytes);
  }
  std::unique_ptr<Comm> duplicate() override {
    return std::make_unique<LosingComm>(inner_->duplicate(), lost_, scratch_);
  }
  void set_timeout_ms(int64_t ms) override { inner_->set_timeout_ms(ms); }
  // Not to the peers: they are to have their vote before.
  void abort(Status, const std::string&) noexcept override {}
  std::optional<Error> error() const override { return error_ ? error_ : inner_->error(); }
  int64_t bytes_sent() const override { return inner_->bytes_sent(); }
  int64_t exchanges() const override { return inner_->exchanges(); }

 private:
  std::unique_ptr<Comm> inner_;
  int64_t lost_, sums_ = 0;
  std::shared_ptr<Buffer> scratch_;
  std::optional<Error> error_;
};

world::Case case_of(int kind) {
  bits::Factors f;
  f.mesh = 3;  // three ranks
  f.window = 2;
  world::Case c = bits::make(f, kind == 1, 2);
  if (kind == 2) c.settings.groups[0].normuon = NormuonAxis::kRows;
  if (kind == 3)  // addends: state and AdamW's slices lie with owners
    for (world::Param& p : c.params) {
      p.addends = 3;
      p.placements = {{PlacementKind::kPartial, 0, 1}};
    }
  return c;
}

}  // namespace

TEST_CASE("nccl: ranks that did not hear the vote follow those that did", "[nccl]") {
  const int kind = GENERATE(0, 1, 2, 3);
  const world::Case c = case_of(kind);
  CAPTURE(kind);
  fake_nccl::reset();
  const world::Tensors expected = run_world(c, plain);
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
      auto comm = plain(std::move(transport));
      if (cut_off.count(number))
        comm = std::make_unique<LosingComm>(
            std::move(comm), c.steps - 1,
            std::make_shared<Buffer>(*machine.device, int64_t{sizeof(Ballot)}));
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
      if (settled.outcome != Recovery::Outcome::kForward || settled.steps != c.steps ||
          rank.optimizer().steps() != c.steps)
        require_none("settled otherwise");
      const std::lock_guard lock(mutex);
      if (!rank.add_to(got, seen)) require_none("replicas differ");
    });
    CHECK(text_of(errors) == "");
    CHECK((got == expected));
  }
}
