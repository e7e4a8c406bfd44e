// The connections of a TcpWorld: polls them, and opens a connection when two ranks first exchange.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "comm/tcp/tcp_world.hpp"

namespace muonrt {

namespace {

using std::chrono::milliseconds;

constexpr int kConnectMs = 20'000;  // maximum time until the peer's system accepts a connection
constexpr int kRetryMs = 20;        // pause after the peer has closed a connection unanswered
constexpr int kMaxPollMs = 1000;
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kServerPauseMs = 10;  // pause between two polls of serve() while operations run

}  // namespace

/// Polls once, until a socket is ready, for at most kMaxPollMs, and not beyond the deadline. If
/// another thread is polling, waits for that thread instead.
void TcpWorld::wait(Lock& lock, Deadline deadline) {
  if (polling_) {
    wake_.wait_until(lock, deadline.at());
    return;
  }
  polling_ = true;
  poll_links(lock, poll_, poll_ms(deadline, kMaxPollMs));
  polling_ = false;
  wake_.notify_all();
}

void TcpWorld::poll_links(Lock& lock, std::vector<pollfd>& fds, int timeout_ms) {
  // Element `r` is the connection to rank r, or -1, which poll() ignores.
  fds.clear();
  for (const Link& l : links_) {
    const bool connecting = l.state == Link::State::kConnecting;
    const int events = connecting ? l.dial.events() : POLLIN | (l.is_idle() ? 0 : POLLOUT);
    fds.push_back({(connecting ? l.dial.socket : l.socket).fd(), static_cast<short>(events), 0});
    const bool retried = l.state == Link::State::kNone && !l.why.empty() && &fds == &poll_;
    if (retried) timeout_ms = std::min(timeout_ms, kRetryMs);
  }
  fds.push_back({wake_poll_.fd(), POLLIN, 0});
  fds.push_back({run_.listener.fd(), POLLIN, 0});
  pending_.add_to(fds);
  lock.unlock();
  // A wake-up takes longer than a message, so the thread of an operation spins before it sleeps.
  const bool spins = &fds == &poll_ && timeout_ms > 1;
  int ready = 0;
  for (const auto end = Clock::now() + kSpin; spins && ready == 0 && Clock::now() < end;) {
    ready = poll(fds.data(), fds.size(), 0);
    if (ready == 0) std::this_thread::yield();
  }
  if (ready == 0) poll(fds.data(), fds.size(), timeout_ms);
  lock.lock();
  if (&fds == &server_poll_ && operations_ > 0) return;  // the operations read everything
  uint64_t taken = 0;
  if (fds[links_.size()].revents) {
    [[maybe_unused]] const ssize_t n = ::read(wake_poll_.fd(), &taken, sizeof taken);
  }
  if (run_.listener && (fds[links_.size() + 1].revents || !pending_.empty())) accept();
  for (int32_t peer = 0; peer < size_; ++peer) {
    const short events = fds[static_cast<size_t>(peer)].revents;
    Link& l = link(peer);
    if (l.state == Link::State::kOpen && events) {
      if (events & ~POLLOUT) read(peer);
      write(peer);
    } else if (l.state == Link::State::kConnecting) {
      if (events) l.dial.advance(key_);
      if (l.dial.state == Dial::State::kConnecting && l.connect_by.passed())
        l.dial.fail(Dial::State::kUnreachable, "no answer for 20 s");
      continue_handshake(peer);
    }
  }
}

/// The main function of the thread that forwards and sends errors while no operation is running.
void TcpWorld::serve() {
  Lock lock(mutex_);
  while (!stop_) {
    if (operations_ > 0 || !served_) {
      served_ = true;
      wake_.wait_for(lock, milliseconds(kServerPauseMs));
    } else {
      poll_links(lock, server_poll_, kMaxPollMs);
    }
  }
}

/// Starts to connect to a lower rank. If the peer is a higher rank, it connects to this rank.
void TcpWorld::connect(int32_t peer) {
  Link& l = link(peer);
  if (peer > rank_ || !l.try_again.passed()) return;
  l.dial = Dial(run_.addresses[static_cast<size_t>(peer)], run_.from);
  l.state = Link::State::kConnecting;
  l.connect_by = Deadline::in_ms(kConnectMs);
  continue_handshake(peer);
}

void TcpWorld::continue_handshake(int32_t peer) {
  Link& l = link(peer);
  if (l.dial.state == Dial::State::kGreeted)
    l.dial.send_claim(key_, {.rank = rank_, .size = size_, .to = peer, .nonce = fresh_nonce()});
  if (l.dial.is_waiting()) return;
  if (l.dial.state == Dial::State::kAnswered) {
    l.socket = std::move(l.dial.socket);
    return open(peer);
  }
  l.state = l.dial.state == Dial::State::kClosed ? Link::State::kNone : Link::State::kFailed;
  l.why.swap(l.dial.why);
  l.try_again = Deadline::in_ms(kRetryMs);
}

/// Called when the connection is ready. Sends the errors and grants that are waiting for it. Errors
/// are sent now because this rank may leave soon. The peer must receive the reason before the
/// report that this rank has left.
void TcpWorld::open(int32_t peer) {
  Link& l = link(peer);
  try {
    l.allocate();
  } catch (const std::bad_alloc&) {
    return end_link(peer, "this rank is out of memory");
  }
  l.state = Link::State::kOpen;
  l.why.clear();
  for (auto& [id, channel] : channels_) {
    if (const auto& error = error_of(channel)) {
      const ErrorFrame frame(id, rank_, error->with_rank(rank_));
      l.queue(frame.head, frame.content);
      continue;
    }
    grant(channel, peer);
  }
  write(peer);
}

void TcpWorld::accept() {
  try {
    const int error = pending_.advance(run_.listener);
    if (error != 0 && !error_)
      error_ = make_error(Status::kComm, "rank ", rank_, " cannot accept a connection (",
                          errno_text(error), "); raise the limit of open files (ulimit -n)");
  } catch (const std::bad_alloc&) {  // the peer will connect again
  }
}

void TcpWorld::admit(PendingConnections::Connection& c) {
  const Claim& claim = c.claim;
  if (claim.to != rank_ || claim.rank <= rank_ || claim.rank >= size_) return;
  Link& l = link(claim.rank);
  if (l.state != Link::State::kNone) return;
  if (!c.send_answer(key_, make_answer(Status::kOk, ""))) return;
  l.socket = std::move(c.socket);
  open(claim.rank);
}

}  // namespace muonrt
