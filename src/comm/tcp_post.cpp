#include "comm/tcp_post.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <thread>

#include "base/signal_mask.hpp"
#include "comm/frame.hpp"
#include "comm/inboxes.hpp"
#include "comm/peer_status.hpp"
#include "comm/tcp_hub.hpp"
#include "comm/tcp_line.hpp"

namespace muonrt {

namespace {

constexpr int kFarewellMs = 1000;  // for frames that nobody waits for

class TcpPost final : public Post {
 public:
  TcpPost(int rank, int size, Socket line, std::unique_ptr<TcpHub> hub)
      : Post(rank, size), hub_(std::move(hub)), line_(std::make_unique<TcpLine>(std::move(line))) {
    const SignalMask mask;
    reader_ = std::thread([this] { read_all(); });
  }

  ~TcpPost() override {
    line_->flush(Deadline::in_ms(kFarewellMs));
    line_->close();
    reader_.join();
    line_.reset();  // the hub sees its end
  }

  std::string name() const override { return "tcp"; }

  void send(uint64_t channel, int32_t to, const void* data, int64_t bytes,
            Deadline deadline) override {
    const auto trouble = [&] { return inboxes_.failed(channel); };
    if (const auto error = trouble()) throw *error;
    for (int64_t at = 0; at < bytes; at += kPieceLimit) {
      const int64_t piece = std::min(kPieceLimit, bytes - at);
      const FrameHead head{
          kFrameMagic, static_cast<int32_t>(FrameKind::kMessage), channel, rank(), to, bytes, at,
          piece};
      line_->send(head, static_cast<const char*>(data) + at, deadline, trouble);
    }
  }

  void receive(uint64_t channel, int32_t from, void* data, int64_t bytes,
               Deadline deadline) override {
    inboxes_.take(channel, from, data, bytes, deadline);
  }

  void publish(uint64_t channel, const Error& error) noexcept override {
    try {
      fail(channel, error.told_by(rank()));
      const ErrorHead head{static_cast<int32_t>(error.status()), error.rank()};
      std::string content(reinterpret_cast<const char*>(&head), sizeof head);
      content += error.message().substr(0, 4000);
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
    line_->post({kFrameMagic, static_cast<int32_t>(kind), channel, rank(), kToAll, bytes, 0, bytes},
                content);
  }

  /// Ends what waits on the channel, to receive or to send.
  void fail(uint64_t channel, Error error) {
    inboxes_.fail(channel, std::move(error));
    line_->look_again();
  }

  void read_all() {
    FrameHead head;
    while (line_->read(&head, sizeof head) && sound(head, size())) {
      try {
        if (!read_content(head)) break;
      } catch (...) {  // no memory: the peers' data cannot be kept
        break;
      }
      line_->advance();
    }
    line_->close();
    inboxes_.close(std::move(ended_));
  }

  bool read_content(const FrameHead& head) {
    switch (static_cast<FrameKind>(head.kind)) {
      case FrameKind::kMessage: {
        auto& message = arriving_[{head.channel, head.from}];
        if (head.offset == 0) message.resize(static_cast<size_t>(head.message_bytes));
        if (head.offset + head.piece_bytes > static_cast<int64_t>(message.size())) return false;
        if (!line_->read(message.data() + head.offset, head.piece_bytes)) return false;
        if (head.offset + head.piece_bytes == head.message_bytes) {
          inboxes_.deliver(head.channel, head.from, std::move(message));
          arriving_.erase({head.channel, head.from});
        }
        return true;
      }
      case FrameKind::kError: {
        std::string content(static_cast<size_t>(head.piece_bytes), '\0');
        ErrorHead error;
        if (content.size() < sizeof error || !line_->read(content.data(), head.piece_bytes))
          return false;
        std::memcpy(&error, content.data(), sizeof error);
        fail(head.channel,
             Error(status_of_peer(error.status), content.substr(sizeof error), error.rank)
                 .told_by(head.from));
        return true;
      }
      case FrameKind::kLeft:
        inboxes_.left(head.channel, head.from);
        return true;
      case FrameKind::kGone:
        inboxes_.gone(head.from);
        line_->hold(head.from, false);
        return true;
      case FrameKind::kFull:
      case FrameKind::kRoom:
        line_->hold(head.from, static_cast<FrameKind>(head.kind) == FrameKind::kFull);
        return true;
    }
    return false;
  }

  std::unique_ptr<TcpHub> hub_;  // rank 0 alone
  std::unique_ptr<TcpLine> line_;
  Inboxes inboxes_;
  std::map<std::pair<uint64_t, int32_t>, Inboxes::Message> arriving_;  // the reader's
  Error ended_ = TcpLine::broken();  // made while there is memory for it
  std::thread reader_;
};

/// @param connections  rank 0: of all ranks, the first empty; else the one to rank 0.
std::shared_ptr<Post> post_over(int rank, int size, std::vector<Socket> connections) {
  if (rank > 0)
    return std::make_shared<TcpPost>(rank, size, std::move(connections.front()), nullptr);
  auto [mine, hubs] = socket_pair();
  connections.front() = std::move(hubs);
  auto hub = std::make_unique<TcpHub>(std::move(connections));
  return std::make_shared<TcpPost>(rank, size, std::move(mine), std::move(hub));
}

}  // namespace

std::shared_ptr<Post> make_tcp_post(const TcpMeeting& meeting, int64_t timeout_ms) {
  check_meeting(meeting);
  const Deadline deadline = Deadline::in_ms(timeout_ms);
  if (meeting.rank == 0) return post_over(0, meeting.size, meet_all(meeting, deadline));
  std::vector<Socket> line;
  line.push_back(meet_rank_0(meeting, deadline));
  return post_over(meeting.rank, meeting.size, std::move(line));
}

std::shared_ptr<Post> make_folder_post(const FolderMeeting& meeting, int64_t timeout_ms) {
  const Deadline deadline = Deadline::in_ms(timeout_ms);
  return post_over(meeting.rank, meeting.size, meet_in_folder(meeting, deadline));
}

}  // namespace muonrt
