#include "comm/thread_transport.hpp"

#include <cstring>

#include "base/text.hpp"
#include "comm/thread_channel.hpp"

namespace muonrt {

namespace {

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(int rank, std::shared_ptr<ThreadChannel> channel)
      : Transport(rank, channel->size()), channel_(std::move(channel)), scratch_(size()) {
    channel_->take_rank(rank);
  }
  ~ThreadTransport() override {
    retire();
    channel_->leave(rank());
  }

  std::string name() const override { return "thread"; }
  bool receivers_copy() const override { return true; }
  std::optional<Error> published_error() const override { return channel_->published_error(); }

 protected:
  void do_exchange(std::span<const SendTo> sends, std::span<const ReceiveFrom> receives) override {
    channel_->throw_if_killed(rank(), operation());
    move(sends, receives, copy());
  }

  void do_allgather(const void* mine, void* all, int64_t bytes) override {
    channel_->throw_if_killed(rank(), operation());
    char* const out = static_cast<char*>(all);
    std::memcpy(out + rank() * bytes, mine, static_cast<size_t>(bytes));
    scratch_.sends.clear();
    scratch_.receives.clear();
    for (int32_t step = 1; step < size(); ++step) {
      const int32_t peer = (rank() + step) % size();
      scratch_.sends.push_back({peer, mine, bytes});
      scratch_.receives.push_back({peer, out + peer * bytes, bytes});
    }
    move(scratch_.sends, scratch_.receives, nullptr);
  }

  std::unique_ptr<Transport> do_duplicate() override {
    auto out = std::make_unique<ThreadTransport>(rank(), channel_->child(operation().ordinal));
    confirm_duplicate(*out);
    return out;
  }

  void publish(const Error& error) noexcept override { channel_->publish(rank(), error); }

 private:
  void move(std::span<const SendTo> sends, std::span<const ReceiveFrom> receives,
            const CopyMessage* copy) {
    channel_->exchange(rank(), operation(), sends, receives, copy, Deadline::in_ms(timeout_ms()),
                       scratch_);
    if (const auto& call = channel_->shared().faults.after_operation) {
      call(channel_->number(), rank(), operation());
    }
  }

  const std::shared_ptr<ThreadChannel> channel_;
  ThreadScratch scratch_;
};

}  // namespace

ThreadGroup::ThreadGroup(int size, ThreadFaults faults) {
  MUONRT_REQUIRE(size >= 1, Status::kInvalidArgument, "thread group: size is ", size,
                 "; pass at least 1");
  channel_ = std::make_shared<ThreadChannel>(
      size, std::make_shared<ThreadGroupShared>(size, std::move(faults)));
}

int ThreadGroup::size() const { return channel_->size(); }

std::unique_ptr<Transport> ThreadGroup::transport(int rank) {
  return std::make_unique<ThreadTransport>(rank, channel_);
}

}  // namespace muonrt
