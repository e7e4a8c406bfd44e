#include "comm/tcp_hub.hpp"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/signal_mask.hpp"

namespace muonrt {

namespace {

constexpr int kLingerMs = 2000;
constexpr int64_t kMuch = int64_t{256} << 20;  // bytes that may lie here

}  // namespace

TcpHub::TcpHub(std::vector<Socket> connections) {
  for (Socket& s : connections) {
    ranks_.emplace_back();
    ranks_.back().socket = std::move(s);
  }
  share_ = std::max(2 * kPieceLimit, kMuch / std::ssize(ranks_));
  std::tie(wake_here_, wake_there_) = socket_pair();
  thread_ = start_thread("the connections", [this] { serve(); });
}

TcpHub::~TcpHub() {
  stop_ = true;
  const char byte = 0;
  [[maybe_unused]] const ssize_t n = send(wake_there_.fd(), &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  thread_.join();
}

void TcpHub::serve() {
  try {
    run();
  } catch (...) {  // no memory: frames are lost, and their receivers must not wait for them
    for (const Rank& r : ranks_) {
      if (r.socket) shutdown(r.socket.fd(), SHUT_RDWR);
    }
  }
}

bool TcpHub::empty() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.out.empty(); });
}

void TcpHub::run() {
  Deadline linger = Deadline::in_ms(kMaxTimeoutMs);
  bool stopping = false;
  while (true) {
    if (!stopping && stop_) {
      stopping = true;
      linger = Deadline::in_ms(kLingerMs);
    }
    std::vector<pollfd> fds = {{wake_here_.fd(), POLLIN, 0}};
    for (const Rank& r : ranks_) {
      const int out = r.out.empty() ? 0 : POLLOUT;
      fds.push_back({r.socket.fd(), static_cast<short>(POLLIN | out), 0});
    }
    // Rank 0's own end is closed by now: what it had written is read, then nothing more comes.
    if (stopping && (linger.passed() || (empty() && !ranks_[0].socket))) return;
    poll(fds.data(), fds.size(), stopping ? 10 : 1000);
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const short seen = fds[r + 1].revents;
      if (!ranks_[r].socket) continue;
      if (seen & POLLOUT) write(static_cast<int32_t>(r));
      if (ranks_[r].socket && (seen & (POLLIN | POLLHUP | POLLERR))) read(static_cast<int32_t>(r));
    }
  }
}

void TcpHub::read(int32_t rank) {
  Rank& r = ranks_[static_cast<size_t>(rank)];
  char buffer[1 << 16];
  const ssize_t n = recv(r.socket.fd(), buffer, sizeof buffer, MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) return drop(rank);
  r.in.insert(r.in.end(), buffer, buffer + n);
  while (cut_frame(rank)) {
  }
}

bool TcpHub::cut_frame(int32_t rank) {
  Rank& r = ranks_[static_cast<size_t>(rank)];
  if (!r.socket || r.in.size() < sizeof(FrameHead)) return false;
  FrameHead head;
  std::memcpy(&head, r.in.data(), sizeof head);
  const char* fault = fault_of(head, static_cast<int>(ranks_.size()));
  if (!fault && head.kind > static_cast<int32_t>(FrameKind::kLeft)) fault = "a frame is the hub's";
  if (!fault && head.from != rank) fault = "a frame is another rank's";
  if (fault) {
    drop(rank, fault);
    return false;
  }
  const size_t size = sizeof head + static_cast<size_t>(head.piece_bytes);
  if (r.in.size() < size) return false;
  Bytes frame(r.in.begin(), r.in.begin() + static_cast<std::ptrdiff_t>(size));
  r.in.erase(r.in.begin(), r.in.begin() + static_cast<std::ptrdiff_t>(size));
  hand_on(rank, std::move(frame));
  return true;
}

void TcpHub::hand_on(int32_t from, Bytes frame) {
  FrameHead head;
  std::memcpy(&head, frame.data(), sizeof head);
  for (size_t to = 0; to < ranks_.size(); ++to) {
    const auto peer = static_cast<int32_t>(to);
    const bool wanted = head.to == kToAll ? peer != from : peer == head.to;
    if (!wanted || !ranks_[to].socket) continue;
    ranks_[to].out.push_back(frame);
    ranks_[to].waiting += static_cast<int64_t>(frame.size());
    write(peer);
    if (head.kind == static_cast<int32_t>(FrameKind::kMessage)) hold_if_behind(peer, from);
  }
}

void TcpHub::say(const FrameHead& head, const std::string& content) {
  Bytes frame(sizeof head);
  std::memcpy(frame.data(), &head, sizeof head);
  frame.insert(frame.end(), content.begin(), content.end());
  hand_on(head.from, std::move(frame));
}

void TcpHub::hold_if_behind(int32_t rank, int32_t sender) {
  Rank& r = ranks_[static_cast<size_t>(rank)];
  if (r.waiting >= share_ && r.held.insert(sender).second)
    say(control_frame(FrameKind::kFull, 0, rank, sender));
}

void TcpHub::let_go(int32_t rank) {
  Rank& r = ranks_[static_cast<size_t>(rank)];
  if (r.waiting > share_ / 2) return;
  for (const int32_t sender : std::exchange(r.held, {}))
    say(control_frame(FrameKind::kRoom, 0, rank, sender));
}

void TcpHub::write(int32_t rank) {
  write_out(ranks_[static_cast<size_t>(rank)]);
  let_go(rank);
}

void TcpHub::write_out(Rank& r) {
  while (!r.out.empty()) {
    const Bytes& frame = r.out.front();
    const ssize_t n = send(r.socket.fd(), frame.data() + r.sent, frame.size() - r.sent,
                           MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    // Reading finds out that it has ended, once all that had come before is read: so it must end,
    // whatever went wrong, for frames are lost.
    if (n < 0) {
      shutdown(r.socket.fd(), SHUT_RDWR);
      r.out.clear();
      r.sent = 0;
      r.waiting = 0;
      return;
    }
    r.sent += static_cast<size_t>(n);
    if (r.sent < frame.size()) return;
    r.waiting -= static_cast<int64_t>(frame.size());
    r.out.pop_front();
    r.sent = 0;
  }
}

void TcpHub::drop(int32_t rank, const char* why) {
  ranks_[static_cast<size_t>(rank)] = Rank();
  const std::string text = why;
  say(control_frame(FrameKind::kGone, 0, rank, kToAll, text.data(), std::ssize(text)), text);
}

}  // namespace muonrt
