// The connections of a TcpWorld: reads, writes and polls them, and opens them when they are needed.
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>

#include "comm/tcp/tcp_world.hpp"

namespace muonrt {

namespace {

constexpr size_t kControlBytes = sizeof(FrameHeader) + sizeof(ErrorFrameHeader) + kTextLimit;
constexpr size_t kMaxControlBytes = size_t{8} << 20;  // that wait for a peer that does not read
constexpr int kConnectMs = 20'000;  // maximum time until the peer's system accepts a connection
constexpr int kRetryMs = 20;        // pause after the peer has closed a connection unanswered
constexpr int kMaxPollMs = 1000;
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr auto kServerPause = std::chrono::milliseconds(10);  // of serve() while operations run

}  // namespace

void Link::allocate() {
  text = std::make_unique_for_overwrite<char[]>(sizeof(ErrorFrameHeader) + kTextLimit);
  control.reserve(2 * kControlBytes);
}

void Link::close(std::string_view reason) noexcept {
  try {
    why = reason;
  } catch (const std::bad_alloc&) {
  }
  socket = Socket();
  state = State::kClosed;
  part_data = nullptr;
  control.clear();
  payload_left = 0;
}

void Link::queue(const FrameHeader& frame, const void* content) noexcept {
  if (state != State::kOpen || !writable) return;
  const auto bytes = static_cast<size_t>(frame.payload_bytes);
  const FrameHeader summed = with_checksums(frame, content);
  try {
    if (control.size() > kMaxControlBytes) return close("the rank reads nothing");
    if (control_at > kControlBytes) {
      control.erase(0, control_at);
      control_at = 0;
    }
    control.append(reinterpret_cast<const char*>(&summed), sizeof summed);
    if (bytes > 0) control.append(static_cast<const char*>(content), bytes);
  } catch (const std::bad_alloc&) {  // the peer detects the end of the connection instead
    close("this rank is out of memory");
  }
}

void Link::stop_writing() noexcept {
  writable = false;
  part_data = nullptr;
  control.clear();
  control_at = 0;
}

Progress Link::write() {
  constexpr auto kHeadBytes = static_cast<int64_t>(sizeof part);
  while (!is_idle()) {
    iovec parts[3];
    size_t n = 0;
    const auto add = [&](const void* data, size_t bytes) {
      if (bytes > 0) parts[n++] = {const_cast<void*>(data), bytes};
    };
    const bool begun = part_data && part_at > 0;
    if (!begun) add(control.data() + control_at, control.size() - control_at);
    const size_t first = begun ? 0 : control.size() - control_at;
    if (part_data) {
      const int64_t in_head = std::min(part_at, kHeadBytes), in_content = part_at - in_head;
      add(reinterpret_cast<const char*>(&part) + in_head,
          static_cast<size_t>(kHeadBytes - in_head));
      add(part_data + in_content, static_cast<size_t>(part.payload_bytes - in_content));
    }
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = n;
    const ssize_t written = sendmsg(socket.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (written < 0) return after_error();
    const size_t of_control = std::min(first, static_cast<size_t>(written));
    if (of_control > 0 && (control_at += of_control) == control.size()) {
      control.clear();
      control_at = 0;
    }
    if (!part_data) continue;
    part_at += written - static_cast<int64_t>(of_control);
    if (part_at < kHeadBytes + part.payload_bytes) continue;
    part_data = nullptr;
    return Progress::kDone;  // another part may follow
  }
  return Progress::kDone;
}

void Link::release_part() noexcept {
  if (part_at == 0) part_data = nullptr;
  if (!part_data || part_data == rest.data()) return;
  try {
    rest.assign(part_data, static_cast<size_t>(part.payload_bytes));
    part_data = rest.data();
  } catch (const std::bad_alloc&) {
    close("this rank is out of memory");
  }
}

Progress Link::fill(Stage& stage, bool& all) {
  const size_t direct = sink == Sink::kDiscard ? 0 : static_cast<size_t>(payload_left);
  // After a payload, reads only the next header. The payload after that header can then also be
  // read directly into its destination.
  const size_t most = direct > 0 ? sizeof head : Stage::kBytes;
  iovec parts[2] = {{sink_at, direct}, {stage.data.get(), most}};
  msghdr message{};
  message.msg_iov = direct > 0 ? parts : parts + 1;
  message.msg_iovlen = direct > 0 ? 2 : 1;
  const ssize_t n = recvmsg(socket.fd(), &message, MSG_DONTWAIT);
  if (n < 0) return after_error();
  if (n == 0) return Progress::kEnded;
  const auto bytes = static_cast<size_t>(n), to_sink = std::min(bytes, direct);
  if (to_sink > 0) count(sink_at, static_cast<int64_t>(to_sink));
  stage.begin = 0;
  stage.end = bytes - to_sink;
  all = stage.end == most;
  return Progress::kDone;
}

void Link::count(const char* data, int64_t bytes) {
  sum = crc32c(data, static_cast<size_t>(bytes), sum);
  payload_left -= bytes;
  if (sink_at) sink_at += bytes;
}

bool Link::take_payload(Stage& stage) {
  const int64_t bytes = std::min(payload_left, static_cast<int64_t>(stage.end - stage.begin));
  const char* const from = stage.data.get() + stage.begin;
  if (sink != Sink::kDiscard && bytes > 0) std::memcpy(sink_at, from, static_cast<size_t>(bytes));
  count(from, bytes);
  stage.begin += static_cast<size_t>(bytes);
  return payload_left == 0;
}

bool Link::take_header(Stage& stage) {
  const size_t bytes = std::min(sizeof head - head_bytes, stage.end - stage.begin);
  std::memcpy(reinterpret_cast<char*>(&head) + head_bytes, stage.data.get() + stage.begin, bytes);
  head_bytes += bytes;
  stage.begin += bytes;
  if (head_bytes < sizeof head) return false;
  head_bytes = 0;
  payload_left = head.payload_bytes;
  sink = Sink::kDiscard;
  sink_at = nullptr;
  sum = 0;
  return true;
}

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
      wake_.wait_for(lock, kServerPause);
    } else {
      poll_links(lock, server_poll_, kMaxPollMs);
    }
  }
}

/// Starts to connect to a lower rank. A higher rank connects to this rank. After rank 0 has left,
/// this rank connects to higher ranks, too, because rank 0 no longer forwards their errors.
void TcpWorld::connect(int32_t peer) {
  Link& l = link(peer);
  if ((peer > rank_ && !link(0).goodbye) || !l.try_again.passed()) return;
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
  if (l.dial.state == Dial::State::kAnswered && l.dial.answer.status != 0)
    l.dial.fail(Dial::State::kUnreachable, l.dial.answer.message.data());
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
  if (claim.to != rank_ || claim.rank < 1 || claim.rank >= size_ || claim.rank == rank_) return;
  Link& l = link(claim.rank);
  // If two ranks connect to each other at the same time, the connection of the higher rank is used.
  if (l.state == Link::State::kOpen || (l.state == Link::State::kConnecting && claim.rank < rank_))
    return;
  const bool lost = l.state == Link::State::kClosed;
  const Status answer = lost ? Status::kComm : Status::kOk;
  if (!c.send_answer(key_, make_answer(answer, "the connection was lost")) || lost) return;
  l.socket = std::move(c.socket);
  l.dial.socket = Socket();
  open(claim.rank);
}

}  // namespace muonrt
