#include "comm/tcp/tcp_router.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <tuple>
#include <utility>

#include "base/signal_mask.hpp"

namespace muonrt {

namespace {

constexpr int kLingerMs = 2000;
constexpr int kMemoryPollMs = 5;                      // between two attempts to allocate
constexpr int64_t kBufferBytes = int64_t{256} << 20;  // bytes that the router stores for all ranks
constexpr int64_t kReasonLimit = 200;

constexpr size_t kHead = sizeof(FrameHeader);

}  // namespace

TcpRouter::Frame::Frame(int64_t capacity, size_t receivers)
    : data(std::make_unique_for_overwrite<char[]>(kHead + static_cast<size_t>(capacity))),
      elements(receivers) {}

void TcpRouter::Frame::set(const FrameHeader& head, std::string_view content) {
  bytes = kHead + static_cast<size_t>(head.payload_bytes);
  std::memcpy(data.get(), &head, kHead);
  std::copy(content.begin(), content.end(), data.get() + kHead);
}

FrameHeader TcpRouter::Frame::head() const {
  FrameHeader out;
  std::memcpy(&out, data.get(), kHead);
  return out;
}

TcpRouter::TcpRouter(std::vector<Socket> connections)
    : ranks_(connections.size()), fds_(connections.size() + 1) {
  const size_t others = ranks_.size() - 1;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Rank& r = ranks_[i];
    r.socket = std::move(connections[i]);
    r.spare = std::make_shared<Frame>(kMaxPayloadBytes, std::max<size_t>(1, others));
    r.notice = std::make_shared<Frame>(0, 1);
    r.goodbye_frame = std::make_shared<Frame>(kReasonLimit, others);
    r.paused.resize(ranks_.size());
    r.notified.resize(ranks_.size());
  }
  share_ = std::max(2 * kMaxPayloadBytes, kBufferBytes / std::ssize(ranks_));
  std::tie(wake_here_, wake_there_) = socket_pair();
  thread_ = start_thread("the connections", [this] { run(); });
}

TcpRouter::~TcpRouter() {
  stop_ = true;
  const char byte = 0;
  [[maybe_unused]] const ssize_t n = send(wake_there_.fd(), &byte, 1, MSG_NOSIGNAL | MSG_DONTWAIT);
  thread_.join();
}

bool TcpRouter::empty() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.out.empty(); });
}

void TcpRouter::run() {
  Deadline linger = Deadline::in_ms(kMaxTimeoutMs);
  bool stopping = false;
  while (true) {
    if (!stopping && stop_) {
      stopping = true;
      linger = Deadline::in_ms(kLingerMs);
    }
    // Rank 0 has closed its end. The frames that it has written are still read.
    if (stopping && (linger.passed() || (empty() && !ranks_[0].socket))) return;
    const bool needs_memory =
        std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& r) { return r.needs_memory(); });
    poll_sockets(needs_memory ? kMemoryPollMs : stopping ? 10 : 1000, stopping);
    for (int32_t rank = 0; rank < std::ssize(ranks_); ++rank) {
      const short seen = fds_[static_cast<size_t>(rank) + 1].revents;
      if (at(rank).socket && (seen & POLLOUT)) write(rank);
      if (at(rank).needs_memory()) {
        find_memory(rank);
      } else if (at(rank).socket && (seen & (POLLIN | POLLHUP | POLLERR))) {
        read(rank);
      }
    }
  }
}

void TcpRouter::poll_sockets(int timeout_ms, bool stopping) {
  // The byte that woke up the thread to stop is not read, so poll() must ignore it.
  fds_[0] = {stopping ? -1 : wake_here_.fd(), POLLIN, 0};
  for (size_t i = 0; i < ranks_.size(); ++i) {
    const Rank& r = ranks_[i];
    const int events = (r.needs_memory() ? 0 : POLLIN) | (r.out.empty() ? 0 : POLLOUT);
    // If an end is closed, poll() returns at once.
    fds_[i + 1] = {events ? r.socket.fd() : -1, static_cast<short>(events), 0};
  }
  poll(fds_.data(), fds_.size(), timeout_ms);
}

void TcpRouter::read(int32_t rank) {
  Rank& r = at(rank);
  if (r.got < kHead) {
    if (!receive(rank, reinterpret_cast<char*>(&r.head), kHead) || !check(rank)) return;
    find_memory(rank);
  }
  if (!r.incoming || !receive(rank, r.incoming->data.get(), r.incoming->bytes)) return;
  const SharedFrame frame = std::exchange(r.incoming, nullptr);
  r.got = 0;
  forward_frame(rank, frame);
}

/// Reads a frame up to byte `end`. Returns false if these bytes have not arrived yet.
bool TcpRouter::receive(int32_t rank, char* to, size_t end) {
  Rank& r = at(rank);
  while (r.got < end) {
    const ssize_t n = recv(r.socket.fd(), to + r.got, end - r.got, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n <= 0) {
      drop(rank);
      return false;
    }
    r.got += static_cast<size_t>(n);
  }
  return true;
}

bool TcpRouter::check(int32_t rank) {
  const FrameHeader& head = at(rank).head;
  const char* problem = frame_problem(head, static_cast<int>(ranks_.size()));
  if (!problem && head.kind > static_cast<int32_t>(FrameKind::kLeft))
    problem = "a frame has a kind that only rank 0 sends";
  if (!problem && head.from != rank) problem = "a frame names another rank as its sender";
  if (problem) drop(rank, problem);
  return !problem;
}

void TcpRouter::find_memory(int32_t rank) {
  Rank& r = at(rank);
  try {
    const size_t receivers = r.head.to == kToAll ? ranks_.size() - 1 : 1;
    r.incoming = std::make_shared<Frame>(r.head.payload_bytes, receivers);
  } catch (const std::bad_alloc&) {
    if (!is_unused(r.spare)) return;
    r.incoming = r.spare;
    if (r.head.kind == static_cast<int32_t>(FrameKind::kMessage)) pause_sender(r.head.to, rank);
  }
  r.incoming->set(r.head);
}

void TcpRouter::forward_frame(int32_t from, const SharedFrame& frame) {
  const FrameHeader head = frame->head();
  for (int32_t to = 0; to < std::ssize(ranks_); ++to) {
    const bool is_receiver = head.to == kToAll ? to != from : to == head.to;
    Rank& r = at(to);
    if (!is_receiver || !r.socket) continue;
    frame->elements.front() = frame;
    r.out.splice(r.out.end(), frame->elements, frame->elements.begin());
    r.waiting += static_cast<int64_t>(frame->bytes);
    write(to);
    if (head.kind == static_cast<int32_t>(FrameKind::kMessage) && r.waiting >= share_)
      pause_sender(to, from);
  }
}

void TcpRouter::pause_sender(int32_t rank, int32_t sender) {
  if (!at(rank).socket) return;  // no frame would end the pause
  at(sender).paused[static_cast<size_t>(rank)] = 1;
  send_notice(sender);
}

void TcpRouter::resume_senders(int32_t rank) {
  if (at(rank).waiting > share_ / 2) return;
  for (int32_t sender = 0; sender < std::ssize(ranks_); ++sender) {
    char& paused = at(sender).paused[static_cast<size_t>(rank)];
    if (std::exchange(paused, 0)) send_notice(sender);
  }
}

/// Sends `rank` one kPause or kResume frame, if one is due. The next one follows when it is sent.
void TcpRouter::send_notice(int32_t rank) {
  Rank& r = at(rank);
  if (!r.socket || !is_unused(r.notice)) return;
  const auto change = std::mismatch(r.paused.begin(), r.paused.end(), r.notified.begin());
  if (change.first == r.paused.end()) return;
  *change.second = *change.first;
  const auto kind = *change.first ? FrameKind::kPause : FrameKind::kResume;
  const auto paused_rank = static_cast<int32_t>(change.first - r.paused.begin());
  r.notice->set(control_frame(kind, 0, paused_rank, rank));
  forward_frame(paused_rank, r.notice);
}

void TcpRouter::write(int32_t rank) {
  Rank& r = at(rank);
  if (write_out(r)) resume_senders(rank);
  send_notice(rank);
}

/// Returns true if at least one frame was sent completely, or dropped.
bool TcpRouter::write_out(Rank& r) {
  bool taken = false;
  while (!r.out.empty()) {
    const Frame& frame = *r.out.front();
    const ssize_t n = send(r.socket.fd(), frame.data.get() + r.sent, frame.bytes - r.sent,
                           MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) break;
    // Frames are lost, so the connection must end. `read` detects that after it has read the bytes
    // that arrived before.
    if (n < 0) {
      shutdown(r.socket.fd(), SHUT_RDWR);
      while (!r.out.empty()) pop(r);
      return true;
    }
    r.sent += static_cast<size_t>(n);
    if (r.sent < frame.bytes) continue;
    pop(r);
    taken = true;
  }
  return taken;
}

void TcpRouter::pop(Rank& r) {
  const SharedFrame frame = std::move(r.out.front());
  frame->elements.splice(frame->elements.end(), r.out, r.out.begin());
  r.waiting -= static_cast<int64_t>(frame->bytes);
  r.sent = 0;
}

void TcpRouter::drop(int32_t rank, const char* why) {
  Rank& r = at(rank);
  r.socket = Socket();
  r.incoming.reset();
  r.got = 0;
  while (!r.out.empty()) pop(r);
  // The kDisconnected frame also ends the pauses of its senders.
  for (Rank& other : ranks_) {
    for (auto* list : {&other.paused, &other.notified}) (*list)[static_cast<size_t>(rank)] = 0;
  }
  const std::string_view text = std::string_view(why).substr(0, kReasonLimit);
  r.goodbye_frame->set(
      control_frame(FrameKind::kDisconnected, 0, rank, kToAll, text.data(), std::ssize(text)),
      text);
  forward_frame(rank, r.goodbye_frame);
}

}  // namespace muonrt
