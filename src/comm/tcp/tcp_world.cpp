#include "comm/tcp/tcp_world.hpp"

#include <linux/sockios.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/hash.hpp"
#include "base/signal_mask.hpp"

namespace muonrt {

namespace {

constexpr int kGoodbyeMs = 1000;  // maximum time to send the frames that are still queued
// When a rank exits, the connection to it is closed, and rank 0 reports the exit. This is the
// maximum time between these two events, in either order.
constexpr auto kDisconnectGrace = std::chrono::seconds(2);

Error disconnected_error(int32_t from, std::string_view why) {
  if (why.empty())
    return make_error(Status::kComm, "rank ", from,
                      " destroyed its communicator or its process ended; see the output of rank ",
                      from, " for the cause");
  return make_error(Status::kComm, "lost the connection to rank ", from, ": ", why,
                    "; check the network and the memory of both machines, and use the same build "
                    "of muonrt on all ranks");
}

}  // namespace

ErrorFrame::ErrorFrame(uint64_t channel, int32_t rank, const Error& error) {
  const ErrorFrameHeader what{static_cast<int32_t>(error.status()), error.rank()};
  const std::string& text = error.message();
  const auto length = std::min(text.size(), static_cast<size_t>(kTextLimit));
  std::memcpy(content, &what, sizeof what);
  std::memcpy(content + sizeof what, text.data(), length);
  head = {.kind = FrameKind::kError,
          .channel = channel,
          .from = rank,
          .payload_bytes = static_cast<int64_t>(sizeof what + length)};
}

TcpWorld::TcpWorld(TcpConnections c)
    : rank_(c.rank),
      size_(c.size),
      key_(c.key.begin(), c.key.end()),
      run_(std::move(c)),
      links_(static_cast<size_t>(size_)),
      wake_poll_([] { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }) {
  MUONRT_REQUIRE(wake_poll_, Status::kComm, "rank ", rank_, ": creating an eventfd failed (",
                 errno_text(errno), "); raise the limit of open files (ulimit -n)");
  // The thread that serves the connections has no caller that it could report a failed allocation
  // to. Polling therefore allocates nothing.
  for (auto* const fds : {&poll_, &server_poll_})
    fds->reserve(2 + links_.size() + pending_.most() + 1);
  for (size_t r = 0; r < run_.sockets.size(); ++r) {
    if (!run_.sockets[r]) continue;
    links_[r].socket = std::move(run_.sockets[r]);
    prepare(links_[r].socket);
    links_[r].allocate();
    links_[r].state = Link::State::kOpen;
  }
}

TcpWorld::~TcpWorld() {
  {
    const Lock lock(mutex_);
    stop_ = true;
    wake_all();
  }
  if (server_.joinable()) server_.join();
  Lock lock(mutex_);
  send_to_all({.kind = FrameKind::kLeft, .from = rank_});
  // If data arrives after a socket is closed, the system sends a reset, and the peer may lose data
  // that is in transit. The destructor therefore waits until the peer's system has acknowledged all
  // data.
  const auto is_delivered = [](const Link& l) {
    int unsent = 0;
    return l.state != Link::State::kOpen ||
           (l.is_idle() && (ioctl(l.socket.fd(), SIOCOUTQ, &unsent) != 0 || unsent == 0));
  };
  const Deadline deadline = Deadline::in_ms(kGoodbyeMs);
  while (!std::all_of(links_.begin(), links_.end(), is_delivered) && !deadline.passed())
    poll_links(lock, poll_, 1);
}

TcpWorld::Channel* TcpWorld::find(uint64_t channel) {
  const auto found = channels_.find(channel);
  return found == channels_.end() ? nullptr : &found->second;
}

void TcpWorld::fail(Channel& channel, Error error) {
  if (!channel.error) channel.error = std::move(error);
  wake_all();
}

void TcpWorld::wake_all() noexcept {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(wake_poll_.fd(), &one, sizeof one);
  wake_.notify_all();
}

void TcpWorld::enter(uint64_t id) {
  const Lock lock(mutex_);
  channels_.emplace(id, Channel{id, std::vector<Peer>(links_.size())});
  // This comes last, because frames of a channel that does not exist are dropped.
  if (rank_ == 0 && size_ > 2) start_server();
}

void TcpWorld::leave(uint64_t id) noexcept {
  const Lock lock(mutex_);
  for (Link& l : links_)
    if (l.sink == Link::Sink::kEarly && l.sink_channel == id) l.sink = Link::Sink::kDiscard;
  channels_.erase(id);
  send_to_all({.kind = FrameKind::kLeft, .channel = id, .from = rank_});
}

void TcpWorld::publish(uint64_t id, const Error& error) noexcept {
  const Lock lock(mutex_);
  if (Channel* const channel = find(id)) fail(*channel, error.reported_by_rank(rank_));
  const ErrorFrame frame(id, rank_, error);
  failed_ = true;
  send_to_all(frame.head, frame.content);
}

/// Sends a frame over all open connections except one. Rank 0 forwards it to the other ranks.
void TcpWorld::send_to_all(const FrameHeader& frame, const void* content, int32_t except) noexcept {
  for (int32_t peer = 0; peer < size_; ++peer) {
    if (peer == except) continue;
    link(peer).queue(frame, content);
    write(peer);
  }
  send_rest();
}

/// Starts a thread that sends what the sockets have not accepted, and accepts connections if peers
/// must receive an error, because this rank may run no more operations.
void TcpWorld::send_rest() noexcept {
  const auto is_sent = [](const Link& l) { return l.state != Link::State::kOpen || l.is_idle(); };
  const bool all = std::all_of(links_.begin(), links_.end(), is_sent);
  if (operations_ > 0 || stop_ || (all && (!failed_ || size_ == 2))) return;
  try {
    start_server();
  } catch (const std::exception&) {  // the next operation, or the destructor, sends the frames
  }
}

void TcpWorld::start_server() {
  if (!server_.joinable()) server_ = start_thread("the connections", [this] { serve(); });
}

void TcpWorld::end_link(int32_t peer, std::string_view why) noexcept {
  Link& l = link(peer);
  const bool goodbye = l.goodbye;
  l.close(why);
  if (rank_ > 0 && peer == 0 && !goodbye && !error_) {
    error_ = why.empty()
                 ? make_error(Status::kComm,
                              "lost the connection to rank 0, which forwards errors; see the "
                              "output of rank 0, and make sure that rank 0 exits last")
                 : disconnected_error(0, why);
  }
  if (!goodbye) forward(peer, {.kind = FrameKind::kDisconnected, .from = peer});
  wake_all();
}

std::optional<Error> TcpWorld::published_error(uint64_t id) {
  Lock lock(mutex_);
  Channel* const channel = find(id);
  if (!channel) return std::nullopt;
  if (!error_of(*channel) && operations_ == 0 && !polling_) {
    polling_ = true;
    poll_links(lock, poll_, 0);
    polling_ = false;
    wake_.notify_all();
  }
  return error_of(*channel);
}

void TcpWorld::exchange(uint64_t id, Sends sends, Receives receives, Deadline deadline) {
  Lock lock(mutex_);
  Channel& channel = *find(id);
  ++operations_;
  served_ = false;
  try {
    begin(channel, sends, receives);
    while (!error_of(channel) && channel.pending > 0) {
      for (int32_t r = 0; r < size_; ++r) {
        const Peer& peer = channel.of(r);
        if (!peer.send.pending && !peer.receive.pending) continue;
        if (const auto error = why_impossible(channel, r)) throw *error;
        if (link(r).state == Link::State::kNone) connect(r);
      }
      if (deadline.passed()) throw_timeout(channel);
      wait(lock, deadline);
    }
    if (const auto& error = error_of(channel)) throw *error;
  } catch (...) {
    end(channel);
    throw;
  }
  end(channel);
}

void TcpWorld::begin(Channel& channel, Sends sends, Receives receives) {
  for (const ReceiveFrom& r : receives) {
    if (r.peer == rank_) continue;
    Peer& peer = channel.of(r.peer);
    if (!peer.early) peer.early = std::make_unique_for_overwrite<char[]>(kEarlyBytes);
    peer.receive = {static_cast<char*>(r.data), r.bytes, peer.received++, true};
    ++channel.pending;
  }
  for (const SendTo& s : sends) {
    if (s.peer == rank_) continue;
    Peer& peer = channel.of(s.peer);
    peer.send = {static_cast<char*>(const_cast<void*>(s.data)), s.bytes, peer.sent++, true};
    ++channel.pending;
  }
  for (const ReceiveFrom& r : receives) {
    grant(channel, r.peer);
    receive_early(channel, r.peer);
  }
  for (const SendTo& s : sends) write(s.peer);
  for (const ReceiveFrom& r : receives) write(r.peer);
}

void TcpWorld::end(Channel& channel) noexcept {
  for (Link& l : links_) {
    if (l.sink == Link::Sink::kReceive && l.sink_channel == channel.id)
      l.sink = Link::Sink::kDiscard;
    if (l.part_data && l.part.channel == channel.id) l.release_part();
  }
  for (Peer& peer : channel.peers) peer.send.pending = peer.receive.pending = false;
  channel.pending = 0;
  --operations_;
  send_rest();
}

/// Returns an error if no message can arrive from the peer, or be sent to the peer. A frame that
/// rank 0 has forwarded may arrive before data of the peer's own connection. On the other hand, the
/// end of this connection may arrive before the error that made the peer leave. Rank 0 forwards
/// that error before it forwards that the peer has left.
std::optional<Error> TcpWorld::why_impossible(Channel& channel, int32_t of) {
  Peer& peer = channel.of(of);
  const Link& l = link(of);
  const auto& since = l.disconnected;
  const bool connecting = l.state == Link::State::kConnecting || l.state == Link::State::kOpen;
  const bool ended = peer.left || l.state >= Link::State::kClosed;
  const bool hears_why = rank_ > 0 && of > 0 && link(0).state == Link::State::kOpen;
  const bool dials = l.state == Link::State::kConnecting;  // data may follow the answer
  if (peer.left_forwarded ? dials : ended && hears_why && !since) {
    if (!peer.ended) peer.ended = Clock::now();
    if (Clock::now() - *peer.ended <= kDisconnectGrace) return std::nullopt;
  }
  if (l.state == Link::State::kClosed) return disconnected_error(of, l.why);
  if (peer.left || (peer.left_forwarded && l.state != Link::State::kOpen))
    return disconnected_error(of, "");
  if (since && (!connecting || Clock::now() - *since > kDisconnectGrace))
    return disconnected_error(of, "");
  if (l.state == Link::State::kFailed) return make_error(Status::kComm, missing_link_text(of));
  return std::nullopt;
}

/// Describes the connection that is missing, with the addresses of both ends.
std::string TcpWorld::missing_link_text(int32_t peer) {
  const Link& l = link(peer);
  const SocketAddress& here = run_.addresses[static_cast<size_t>(rank_)];
  if (rank_ < peer && l.state != Link::State::kFailed)
    return cat("rank ", peer, " has not connected to this rank, which listens at ", here.host(),
               " port ", here.port(), "; if rank ", peer,
               " is running, check whether a firewall blocks this port");
  return cat("rank ", rank_, " at ", here.host(), " cannot connect to rank ", peer, " at ",
             run_.addresses[static_cast<size_t>(peer)].text(), " (",
             l.why.empty() ? "no answer" : l.why, "); if rank ", peer,
             " is running, check whether a firewall blocks this port, or set the range of ports");
}

void TcpWorld::throw_timeout(Channel& channel) {
  int32_t peer = 0;
  while (peer < size_ && !channel.of(peer).receive.pending) ++peer;
  const bool receives = peer < size_;
  if (!receives) peer = 0;
  while (!receives && !channel.of(peer).send.pending) ++peer;
  throw make_error(Status::kTimeout, receives ? "received no message from rank " : "rank ", peer,
                   receives ? "" : " accepted no message",
                   " before the timeout; check whether rank ", peer,
                   " is still running, or raise the timeout (timeout_ms of the optimizer, or "
                   "muonrt_comm_set_timeout())",
                   link(peer).state == Link::State::kOpen ? "" : "; " + missing_link_text(peer));
}

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
    with_where([&](Deadline end) { world_->exchange(channel_, sends, receives, end); });
  }

  /// In round k each rank sends the blocks that it has to the rank 2^k before it, so that every
  /// rank has all blocks after log2(size) rounds. Source: Bruck et al. 1997, section 4.
  void do_allgather(const void* mine, void* all, int64_t bytes) override {
    auto* const out = static_cast<char*>(all);
    // Until the last line, block i is the block of rank (rank() + i) % size().
    std::memcpy(out, mine, static_cast<size_t>(bytes));
    with_where([&](Deadline deadline) {
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
      body(Deadline::in_ms(timeout_ms()));
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
