// The connections of a TcpWorld: polls them, and opens one when two ranks first communicate.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "comm/tcp/tcp_world.hpp"

namespace muonrt {

namespace {

using std::chrono::milliseconds;

constexpr int kConnectMs = 20'000;  // until the system of the peer has accepted a connection
constexpr int kRetryMs = 20;        // after the peer has closed a connection without an answer
constexpr int kMaxPollMs = 1000;
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kServerPauseMs = 10;  // between two looks of serve() while operations run

}  // namespace

/// Polls until something happens, or waits for the thread that does.
void TcpWorld::wait(Lock& lock, Deadline deadline) {
  if (polling_) {
    wake_.wait_until(lock, deadline.at());
    return;
  }
  polling_ = true;
  poll_links(lock, poll_, poll_ms(deadline, retrying_ ? kRetryMs : kMaxPollMs));
  polling_ = false;
  wake_.notify_all();
}

void TcpWorld::poll_links(Lock& lock, Poll& p, int timeout_ms) {
  p.fds.clear();
  p.peers.clear();
  const auto add = [&](const Socket& socket, int events, int32_t peer) {
    p.fds.push_back({socket.fd(), static_cast<short>(events), 0});
    p.peers.push_back(peer);
  };
  add(wake_poll_, POLLIN, -1);
  if (listener_) add(listener_, POLLIN, -1);
  pending_.add_to(p.fds);
  p.peers.resize(p.fds.size(), -1);
  for (int32_t peer = 0; peer < size_; ++peer) {
    const Link& l = link(peer);
    if (!l.socket) continue;
    const bool connecting = l.state == Link::State::kConnecting;
    add(l.socket, (connecting ? 0 : POLLIN) | (connecting || !l.is_idle() ? POLLOUT : 0), peer);
  }
  lock.unlock();
  // A wake-up takes longer than a message, so the thread of an operation sleeps only after a while.
  const bool spins = &p == &poll_ && timeout_ms > 1;
  int ready = 0;
  for (const auto end = Clock::now() + kSpin; spins && ready == 0 && Clock::now() < end;) {
    ready = poll(p.fds.data(), p.fds.size(), 0);
    if (ready == 0) std::this_thread::yield();
  }
  if (ready == 0) poll(p.fds.data(), p.fds.size(), timeout_ms);
  lock.lock();
  if (&p == &server_poll_ && operations_ > 0) return;  // their threads read everything
  uint64_t taken = 0;
  if (p.fds[0].revents) {
    [[maybe_unused]] const ssize_t n = ::read(wake_poll_.fd(), &taken, sizeof taken);
  }
  if (listener_ && (p.fds[1].revents || !pending_.empty())) accept();
  for (size_t i = 1; i < p.fds.size(); ++i) {
    if (p.peers[i] < 0 || !p.fds[i].revents) continue;
    const int32_t peer = p.peers[i];
    if (link(peer).state == Link::State::kOpen) {
      if (p.fds[i].revents & ~POLLOUT) read(peer);
      write(peer);
    } else if (link(peer).socket) {
      connected(peer);
    }
  }
  retrying_ = false;
  for (int32_t peer = 0; peer < rank_; ++peer) {
    Link& l = link(peer);
    if (l.state == Link::State::kConnecting && l.connect_by.passed()) {
      l.failed = true;
      l.state = Link::State::kNone;
      l.socket = Socket();
      l.why = cat("no answer for ", kConnectMs / 1000, " s");
    }
    retrying_ = retrying_ || (l.state == Link::State::kNone && !l.why.empty() && !l.failed);
  }
}

/// The thread that forwards and sends errors while no operation runs.
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

/// Starts to connect to a lower rank; a higher rank connects to this one.
void TcpWorld::connect(int32_t peer) {
  Link& l = link(peer);
  if (peer > rank_ || l.failed || !l.try_again.passed()) return;
  const SocketAddress& at = addresses_[static_cast<size_t>(peer)];
  std::string why;
  l.socket = begin_connect(at, from_, why);
  l.state = l.socket ? Link::State::kConnecting : Link::State::kNone;
  l.failed = !l.socket;
  l.why = why;
  l.connect_by = Deadline::in_ms(kConnectMs);
}

/// The socket of a connection that is being made is ready.
void TcpWorld::connected(int32_t peer) {
  Link& l = link(peer);
  if (l.state == Link::State::kConnecting) {
    std::string why;
    if (is_connected(l.socket, why)) {
      prepare(l.socket);
      l.state = Link::State::kGreeted;
      l.got = 0;
      return;
    }
    l.failed = true;
    return retry(peer, std::move(why));
  }
  continue_handshake(peer);
}

void TcpWorld::retry(int32_t peer, std::string why) {
  Link& l = link(peer);
  l.socket = Socket();
  l.state = Link::State::kNone;
  l.why = std::move(why);
  l.try_again = Deadline::in_ms(kRetryMs);
}

void TcpWorld::continue_handshake(int32_t peer) {
  Link& l = link(peer);
  const bool greeting = l.state == Link::State::kGreeted;
  void* const to = greeting ? static_cast<void*>(&l.greeting) : &l.answer;
  switch (receive_rest(l.socket, to, greeting ? sizeof l.greeting : sizeof l.answer, l.got)) {
    case Received::kPart:
      return;
    case Received::kEnded:
      return retry(peer, "the rank closed the connection");
    case Received::kAll:
      break;
  }
  l.got = 0;
  if (greeting) {
    l.claim = {kClaim, rank_, size_, 0, kProtocolVersion, 0, peer, fresh_nonce(), {}};
    l.claim.proof = proof_of(key_, l.greeting.nonce, l.claim);
    if (!send_value(l.socket, l.claim)) return retry(peer, "the rank closed the connection");
    l.state = Link::State::kProof;
    return;
  }
  if (equal_in_constant_time(l.answer.proof,
                             proof_of(key_, l.greeting.nonce, l.claim.nonce, l.answer)))
    return open(peer);
  l.failed = true;
  retry(peer, "another program answers there");
}

/// The connection is ready. Sends the errors and the grants for which there was no connection. This
/// rank may leave soon, and then the peer must have the reason before it learns that.
void TcpWorld::open(int32_t peer) {
  Link& l = link(peer);
  try {
    l.allocate();
  } catch (const std::bad_alloc&) {
    return end_link(peer, "this rank is out of memory");
  }
  l.state = Link::State::kOpen;
  l.why.clear();
  for (const auto& [id, channel] : channels_) {
    if (const auto& error = error_of(channel)) {
      const ErrorFrame frame(id, rank_, error->with_rank(rank_));
      l.queue(frame.head, frame.content);
      continue;
    }
    const int32_t at = channel.peers[static_cast<size_t>(peer)].receive;
    if (at >= 0) grant(channel, channel.receives[static_cast<size_t>(at)]);
  }
  write(peer);
}

void TcpWorld::accept() {
  const auto examine = [this](PendingConnections::Connection& c) { admit(c); };
  try {
    pending_.read(examine);
    const int error = pending_.accept(listener_, examine);
    if (error != 0 && !error_)
      error_ = make_error(Status::kComm, "rank ", rank_, " cannot accept a connection (",
                          errno_text(error), "); raise the limit of open files (ulimit -n)");
  } catch (const std::bad_alloc&) {  // the peer connects again
  }
}

void TcpWorld::admit(PendingConnections::Connection& c) {
  const Claim& claim = c.claim;
  if (claim.to != rank_ || claim.rank <= rank_ || claim.rank >= size_) return;
  Link& l = link(claim.rank);
  if (l.state != Link::State::kNone) return;
  if (!send_value(c.socket, make_answer(key_, c.greeted, claim.nonce, Status::kOk, ""))) return;
  l.socket = std::move(c.socket);
  open(claim.rank);
}

}  // namespace muonrt
