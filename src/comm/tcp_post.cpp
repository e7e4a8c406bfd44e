#include "comm/tcp_post.hpp"

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <thread>

#include "base/signal_mask.hpp"
#include "comm/frame.hpp"
#include "comm/inboxes.hpp"
#include "comm/tcp_hub.hpp"

namespace muonrt {

namespace {

constexpr int kControlMs = 1000;  // to hand over a few hundred bytes that nobody waits for

class TcpPost final : public Post {
 public:
  TcpPost(const TcpMeeting& meeting, Socket line, std::unique_ptr<TcpHub> hub)
      : Post(meeting.rank, meeting.size), line_(std::move(line)), hub_(std::move(hub)) {
    const SignalMask mask;
    reader_ = std::thread([this] { read_all(); });
  }

  ~TcpPost() override {
    shutdown(line_.fd(), SHUT_RDWR);  // wakes the reader
    reader_.join();
    line_ = Socket();
    hub_.reset();
  }

  std::string name() const override { return "tcp"; }

  void send(uint64_t channel, int32_t to, const void* data, int64_t bytes,
            Deadline deadline) override {
    if (const auto error = inboxes_.failed(channel)) throw *error;
    const std::lock_guard lock(send_mutex_);
    for (int64_t at = 0; at < bytes; at += kPieceLimit) {
      const int64_t piece = std::min(kPieceLimit, bytes - at);
      const FrameHead head{
          kFrameMagic, static_cast<int32_t>(FrameKind::kMessage), channel, rank(), to, bytes, at,
          piece};
      write(&head, sizeof head, deadline);
      write(static_cast<const char*>(data) + at, piece, deadline);
    }
  }

  void receive(uint64_t channel, int32_t from, void* data, int64_t bytes,
               Deadline deadline) override {
    inboxes_.take(channel, from, data, bytes, deadline);
  }

  void publish(uint64_t channel, Status status, const std::string& message) noexcept override {
    try {
      inboxes_.fail(channel, reported_by(rank(), status, message));
      std::string content(sizeof(int32_t), '\0');
      const auto value = static_cast<int32_t>(status);
      std::memcpy(content.data(), &value, sizeof value);
      content += message.substr(0, 4000);
      tell_all(FrameKind::kError, channel, content);
    } catch (...) {  // the peers learn of it by their deadlines
    }
  }

  std::optional<Error> published(uint64_t channel) override { return inboxes_.failed(channel); }

  void leave(uint64_t channel) noexcept override {
    try {
      tell_all(FrameKind::kLeft, channel, "");
    } catch (...) {
    }
  }

 private:
  void tell_all(FrameKind kind, uint64_t channel, const std::string& content) {
    const auto bytes = static_cast<int64_t>(content.size());
    const FrameHead head{kFrameMagic, static_cast<int32_t>(kind), channel, rank(), kToAll, bytes, 0,
                         bytes};
    const Deadline deadline = Deadline::in_ms(kControlMs);
    const std::lock_guard lock(send_mutex_);
    write(&head, sizeof head, deadline);
    write(content.data(), bytes, deadline);
  }

  /// A frame that is not written whole ends the connection: what follows would make no sense.
  void write(const void* data, int64_t bytes, Deadline deadline) {
    int64_t sent = 0;
    while (sent < bytes) {
      const ssize_t n = ::send(line_.fd(), static_cast<const char*>(data) + sent,
                               static_cast<size_t>(bytes - sent), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n >= 0) {
        sent += n;
        continue;
      }
      const int error = errno;
      if (error == EINTR) continue;
      const bool full = error == EAGAIN;
      if (full && wait_for(line_.fd(), POLLOUT, deadline)) continue;
      shutdown(line_.fd(), SHUT_RDWR);
      if (full) {
        throw Error(Status::kTimeout,
                    "rank 0 takes no more messages and the deadline has passed; look whether it "
                    "still runs");
      }
      throw broken();
    }
  }

  bool read(void* data, int64_t bytes) {
    int64_t got = 0;
    while (got < bytes) {
      const ssize_t n = recv(line_.fd(), static_cast<char*>(data) + got,
                             static_cast<size_t>(bytes - got), MSG_DONTWAIT);
      if (n > 0) {
        got += n;
      } else if (n == 0 || (errno != EAGAIN && errno != EINTR)) {
        return false;
      } else {
        wait_for(line_.fd(), POLLIN, Deadline::in_ms(1000));
      }
    }
    return true;
  }

  void read_all() {
    FrameHead head;
    while (read(&head, sizeof head) && sound(head, size())) {
      try {
        if (!read_content(head)) break;
      } catch (...) {  // no memory: the peers' data cannot be kept
        break;
      }
    }
    inboxes_.close(broken());
    shutdown(line_.fd(), SHUT_RDWR);
  }

  bool read_content(const FrameHead& head) {
    switch (static_cast<FrameKind>(head.kind)) {
      case FrameKind::kMessage: {
        auto& message = arriving_[{head.channel, head.from}];
        if (head.offset == 0) message.resize(static_cast<size_t>(head.message_bytes));
        if (head.offset + head.piece_bytes > static_cast<int64_t>(message.size())) return false;
        if (!read(message.data() + head.offset, head.piece_bytes)) return false;
        if (head.offset + head.piece_bytes == head.message_bytes) {
          inboxes_.deliver(head.channel, head.from, std::move(message));
          arriving_.erase({head.channel, head.from});
        }
        return true;
      }
      case FrameKind::kError: {
        std::string content(static_cast<size_t>(head.piece_bytes), '\0');
        if (content.size() < sizeof(int32_t) || !read(content.data(), head.piece_bytes))
          return false;
        int32_t status = 0;
        std::memcpy(&status, content.data(), sizeof status);
        inboxes_.fail(head.channel, reported_by(head.from, static_cast<Status>(status),
                                                content.substr(sizeof status)));
        return true;
      }
      case FrameKind::kLeft:
        inboxes_.left(head.channel, head.from);
        return true;
      case FrameKind::kGone:
        inboxes_.gone(head.from);
        return true;
    }
    return false;
  }

  static Error broken() {
    return Error(Status::kComm,
                 "the connection to rank 0 has ended, which carries all messages; look at its "
                 "messages, and let it end last");
  }

  Socket line_;
  std::unique_ptr<TcpHub> hub_;  // rank 0 alone
  std::mutex send_mutex_;
  Inboxes inboxes_;
  std::map<std::pair<uint64_t, int32_t>, Inboxes::Message> arriving_;  // the reader's
  std::thread reader_;
};

}  // namespace

std::shared_ptr<Post> make_tcp_post(const TcpMeeting& meeting, int64_t timeout_ms) {
  check_meeting(meeting);
  const Deadline deadline = Deadline::in_ms(timeout_ms);
  if (meeting.rank > 0)
    return std::make_shared<TcpPost>(meeting, meet_rank_0(meeting, deadline), nullptr);
  std::vector<Socket> connections = meet_all(meeting, deadline);
  auto [mine, hubs] = socket_pair();
  connections.front() = std::move(hubs);
  auto hub = std::make_unique<TcpHub>(std::move(connections));
  return std::make_shared<TcpPost>(meeting, std::move(mine), std::move(hub));
}

}  // namespace muonrt
