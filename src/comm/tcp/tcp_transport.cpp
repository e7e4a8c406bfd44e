#include <algorithm>
#include <cstring>

#include "base/hash.hpp"
#include "comm/tcp/rendezvous.hpp"
#include "comm/tcp/tcp_world.hpp"

namespace muonrt {

namespace {

class TcpTransport final : public Transport {
 public:
  TcpTransport(std::shared_ptr<TcpWorld> world, uint64_t channel)
      : Transport(world->rank(), world->size()), world_(std::move(world)), channel_(channel) {
    world_->enter(channel_);
  }
  ~TcpTransport() override {
    retire();
    world_->leave(channel_);
  }

  std::string name() const override { return "tcp"; }
  std::optional<Error> published_error() const override {
    return world_->published_error(channel_);
  }

 protected:
  void do_exchange(std::span<const SendTo> sends, std::span<const ReceiveFrom> receives) override {
    const Deadline deadline = Deadline::in_ms(timeout_ms());
    with_where([&] { world_->exchange(channel_, sends, receives, deadline); });
  }

  /// In round k each rank sends the blocks that it has to the rank 2^k before it, so that every
  /// rank has all blocks after log2(size) rounds. Source: Bruck et al. 1997, section 4.
  void do_allgather(const void* mine, void* all, int64_t bytes) override {
    const Deadline deadline = Deadline::in_ms(timeout_ms());
    auto* const out = static_cast<char*>(all);
    // Until the last line, block i is the block of rank (rank() + i) % size().
    std::memcpy(out, mine, static_cast<size_t>(bytes));
    with_where([&] {
      for (int32_t have = 1; have < size(); have *= 2) {
        const int64_t count = bytes * std::min(have, size() - have);
        const SendTo send{(rank() + size() - have) % size(), out, count};
        const ReceiveFrom receive{(rank() + have) % size(), out + have * bytes, count};
        world_->exchange(channel_, {&send, 1}, {&receive, 1}, deadline);
      }
    });
    std::rotate(out, out + ((size() - rank()) % size()) * bytes, out + size() * bytes);
  }

  std::unique_ptr<Transport> do_duplicate() override {
    // The channel number is equal on every rank, and different for each duplicate.
    Hash child;
    child.value(static_cast<int64_t>(channel_));
    child.value(operation().ordinal);
    auto out = std::make_unique<TcpTransport>(world_, child.digest());
    confirm_duplicate(*out);
    return out;
  }

  void publish(const Error& error) noexcept override { world_->publish(channel_, error); }

 private:
  template <class Body>
  void with_where(Body body) {
    try {
      body();
    } catch (const Error& error) {
      std::string prefix;
      try {
        prefix = where() + ": ";
      } catch (const std::bad_alloc&) {  // the message becomes shorter
      }
      throw error.with_context(prefix);
    }
  }

  const std::shared_ptr<TcpWorld> world_;
  const uint64_t channel_;
};

}  // namespace

std::unique_ptr<Transport> make_tcp_transport(TcpConnections connections) {
  return std::make_unique<TcpTransport>(std::make_shared<TcpWorld>(std::move(connections)), 1);
}

}  // namespace muonrt
