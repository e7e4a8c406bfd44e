#include "comm/tcp/tcp_connection.hpp"

#include <linux/sockios.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <tuple>

namespace muonrt {

namespace {

constexpr size_t kControlBytes = sizeof(FrameHeader) + sizeof(ErrorFrameHeader) + kTextLimit;

}  // namespace

TcpConnection::TcpConnection(Socket socket, int size)
    : socket_(std::move(socket)),
      rest_(std::make_unique_for_overwrite<char[]>(kMaxPayloadBytes)),
      paused_(static_cast<size_t>(size)) {
  std::tie(wake_here_, wake_there_) = socket_pair();
}

void TcpConnection::enter() {
  const Lock lock(mutex_);
  while (spare_.size() < 2 * (channels_ + 1)) {  // an error frame and a kLeft frame
    std::string memory;
    memory.reserve(kControlBytes);
    spare_.push_back(std::move(memory));
  }
  ++channels_;
}

void TcpConnection::leave() noexcept {
  const Lock lock(mutex_);
  --channels_;
}

Error TcpConnection::broken() {
  return make_error(
      Status::kComm,
      "lost the connection to rank 0, which forwards all TCP messages; see the output of "
      "rank 0, and make sure that rank 0 exits last");
}

template <class Ready>
void TcpConnection::await(Lock& lock, int32_t to, Deadline deadline, const ErrorSource& find_error,
                          Ready ready) {
  while (!ready()) {
    if (const auto error = find_error()) throw *error;
    if (broken_) throw broken();
    MUONRT_REQUIRE(!deadline.passed(), Status::kTimeout, "rank ", is_paused(to) ? to : 0,
                   " accepted no message before the timeout; check whether rank ",
                   is_paused(to) ? to : 0, " is still running");
    ++waiting_senders_;
    wake_.wait_until(lock, deadline.at());
    --waiting_senders_;
  }
}

void TcpConnection::send(const FrameHeader& head, const void* content, Deadline deadline,
                         const ErrorSource& find_error) {
  Lock lock(mutex_);
  await(lock, head.to, deadline, find_error, [&] { return !outgoing_ && !is_paused(head.to); });
  outgoing_ = OutgoingFrame{head, static_cast<const char*>(content)};
  const int64_t mine = ++outgoing_number_;
  write_out();
  if (pending()) wake_reader();
  try {
    await(lock, head.to, deadline, find_error,
          [&] { return !outgoing_ || outgoing_number_ != mine; });
  } catch (...) {
    give_up();
    throw;
  }
}

/// If the frame is partly written, the rest must follow, because the receiver reads whole frames.
void TcpConnection::give_up() noexcept {
  if (outgoing_->at > 0 && !broken_) {
    std::memcpy(rest_.get(), outgoing_->content,
                static_cast<size_t>(outgoing_->head.payload_bytes));
    outgoing_->content = rest_.get();
    return;
  }
  outgoing_.reset();
  wake_.notify_all();
}

void TcpConnection::queue_control(const FrameHeader& head, const char* content) {
  const Lock lock(mutex_);
  if (broken_) return;
  std::list<std::string> one;
  if (spare_.empty())
    one.emplace_back();
  else
    one.splice(one.end(), spare_, spare_.begin());
  std::string& frame = one.front();
  frame.assign(reinterpret_cast<const char*>(&head), sizeof head);
  frame.append(content, static_cast<size_t>(head.payload_bytes));
  frames_.splice(frames_.end(), one);
  write_out();
  if (pending()) wake_reader();
}

void TcpConnection::pause_rank(int32_t rank, bool on) {
  const Lock lock(mutex_);
  paused_[static_cast<size_t>(rank)] = on;
  wake_.notify_all();
}

void TcpConnection::recheck_error() {
  const Lock lock(mutex_);
  wake_.notify_all();
}

bool TcpConnection::has_waiting_sender() {
  const Lock lock(mutex_);
  return waiting_senders_ > 0;
}

void TcpConnection::flush(Deadline deadline) {
  Lock lock(mutex_);
  wake_.wait_until(lock, deadline.at(), [&] { return broken_ || !pending(); });
  // If data arrives after a socket is closed, the system sends a reset, and the peer may lose data
  // that is in transit.
  int unsent = 1;
  while (!broken_ && !deadline.passed() && ioctl(socket_.fd(), SIOCOUTQ, &unsent) == 0 &&
         unsent > 0)
    wake_.wait_for(lock, std::chrono::milliseconds(1));
}

void TcpConnection::close() noexcept {
  const Lock lock(mutex_);
  broken_ = true;
  shutdown(socket_.fd(), SHUT_RDWR);
  wake_.notify_all();
  wake_reader();
}

bool TcpConnection::read(void* data, int64_t bytes) {
  int64_t got = 0;
  while (got < bytes) {
    const ssize_t n = recv(socket_.fd(), static_cast<char*>(data) + got,
                           static_cast<size_t>(bytes - got), MSG_DONTWAIT);
    if (n > 0) {
      got += n;
    } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
      return false;
    } else {
      wait_for(POLLIN, 1000);
    }
  }
  return true;
}

bool TcpConnection::pause(int ms) {
  wait_for(0, ms);
  const Lock lock(mutex_);
  return !broken_;
}

void TcpConnection::wait_for(short events, int ms) {
  {
    const Lock lock(mutex_);
    if (pending() && !broken_) events |= POLLOUT;
  }
  // If an end is closed, poll() returns at once.
  pollfd fds[] = {{events ? socket_.fd() : -1, events, 0}, {wake_here_.fd(), POLLIN, 0}};
  poll(fds, 2, ms);
  char taken[64];
  if (fds[1].revents) {
    [[maybe_unused]] const ssize_t n = recv(wake_here_.fd(), taken, sizeof taken, MSG_DONTWAIT);
  }
  if (fds[0].revents & (POLLOUT | POLLERR)) advance();
}

void TcpConnection::wake_reader() {
  const char byte = 0;
  [[maybe_unused]] const ssize_t n =
      ::send(wake_there_.fd(), &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void TcpConnection::advance() {
  const Lock lock(mutex_);
  write_out();
}

/// Continues a frame that is partly written. Otherwise control frames have priority.
void TcpConnection::write_out() {
  while (pending() && !broken_) {
    const bool done =
        outgoing_ && (outgoing_->at > 0 || frames_.empty()) ? write_outgoing() : write_frame();
    if (!done) return;
  }
}

bool TcpConnection::write_outgoing() {
  if (!written(*outgoing_, outgoing_->at)) return false;
  outgoing_.reset();
  wake_.notify_all();
  return true;
}

bool TcpConnection::write_frame() {
  OutgoingFrame all{};
  std::string& frame = frames_.front();
  std::memcpy(&all.head, frame.data(), sizeof all.head);
  all.content = frame.data() + sizeof all.head;
  auto at = static_cast<int64_t>(frame_at_);
  const bool done = written(all, at);
  frame_at_ = done ? 0 : static_cast<size_t>(at);
  if (!done) return false;
  frames_.pop_front();
  if (frames_.empty()) wake_.notify_all();
  return true;
}

/// Writes `frame` from byte `at` on, as far as the socket accepts it. Returns true when it is done.
bool TcpConnection::written(const OutgoingFrame& frame, int64_t& at) {
  constexpr auto kHeadBytes = static_cast<int64_t>(sizeof frame.head);
  while (at < frame.bytes()) {
    const int64_t in_head = std::min(at, kHeadBytes), in_content = at - in_head;
    iovec parts[] = {{const_cast<char*>(reinterpret_cast<const char*>(&frame.head)) + in_head,
                      static_cast<size_t>(kHeadBytes - in_head)},
                     {const_cast<char*>(frame.content) + in_content,
                      static_cast<size_t>(frame.head.payload_bytes - in_content)}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    const ssize_t n = sendmsg(socket_.fd(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n >= 0) {
      at += n;
      continue;
    }
    if (errno == EINTR) continue;
    if (errno == EAGAIN) return false;
    broken_ = true;
    shutdown(socket_.fd(), SHUT_RDWR);
    wake_.notify_all();
    return false;
  }
  return true;
}

}  // namespace muonrt
