#include "comm/tcp_post.hpp"

#include <pthread.h>

#include <cstring>
#include <mutex>
#include <set>
#include <thread>

#include "base/peer_status.hpp"
#include "base/signal_mask.hpp"
#include "comm/frame.hpp"
#include "comm/inboxes.hpp"
#include "comm/tcp_hub.hpp"
#include "comm/tcp_line.hpp"

namespace muonrt {

namespace {

constexpr int kFarewellMs = 1000;  // for frames that nobody waits for

/// A peer's words, without what a terminal would act on.
std::string words_in(const char* text, int64_t bytes) {
  std::string out(text, static_cast<size_t>(bytes));
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);  // char is unsigned on arm64
    if ((byte < ' ' && byte != '\n') || byte == 127) c = '?';
  }
  return out;
}

class TcpPost;

/// All posts of this process. A child that it forks has their connections and none of their
/// threads: it closes its copies at once, or peers would not see that this process has ended.
class Posts {
 public:
  static Posts& all() {
    static Posts* const it = new Posts;  // for ever: a fork may come at any time
    return *it;
  }
  void add(TcpPost* post) {
    const std::lock_guard lock(mutex_);
    posts_.insert(post);
  }
  void remove(TcpPost* post) {
    const std::lock_guard lock(mutex_);
    posts_.erase(post);
  }

 private:
  Posts() {
    pthread_atfork([] { all().mutex_.lock(); }, [] { all().mutex_.unlock(); },
                   [] { all().in_child(); });
  }
  void in_child() noexcept;

  std::mutex mutex_;
  std::set<TcpPost*> posts_;
};

class TcpPost final : public Post {
 public:
  TcpPost(int rank, int size, Socket line, std::unique_ptr<TcpHub> hub)
      : Post(rank, size), hub_(std::move(hub)), line_(std::make_unique<TcpLine>(std::move(line))) {
    Posts::all().add(this);
    try {
      reader_ = start_thread("a connection", [this] { read_all(); });
    } catch (...) {
      Posts::all().remove(this);
      throw;
    }
  }

  ~TcpPost() override {
    Posts::all().remove(this);
    line_->flush(Deadline::in_ms(kFarewellMs));
    line_->close();
    reader_.join();
    line_.reset();  // the hub sees its end
  }

  std::string name() const override { return "tcp"; }

  void forsake() noexcept {
    line_->forsake();
    if (hub_) hub_->forsake();
  }

  void send(uint64_t channel, int32_t to, const void* data, int64_t bytes,
            Deadline deadline) override {
    const auto trouble = [&] { return inboxes_.ended(channel); };
    if (const auto error = trouble()) throw *error;
    for (int64_t at = 0; at < bytes; at += kPieceLimit) {
      line_->send(message_frame(channel, rank(), to, data, bytes, at),
                  static_cast<const char*>(data) + at, deadline, trouble);
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
      content += error.message().substr(0, kTextLimit);
      tell_all(FrameKind::kError, channel, content);
    } catch (...) {  // no memory: the end of the connection tells everybody
      line_->close();
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
    line_->post(control_frame(kind, channel, rank(), kToAll, content.data(), std::ssize(content)),
                content);
  }

  /// Ends what waits on the channel, to receive or to send.
  void fail(uint64_t channel, Error error) {
    inboxes_.fail(channel, std::move(error));
    line_->look_again();
  }

  void read_all() {
    FrameHead head;
    while (line_->read(&head, sizeof head)) {
      try {
        if (const char* const fault = fault_of(head, size())) {
          ended_ = muonrt::gone(0, fault);  // which carries all messages
          break;
        }
        if (!read_content(head)) break;
      } catch (...) {  // no memory: the peers' data cannot be kept
        break;
      }
      line_->advance();
    }
    inboxes_.close(std::move(ended_));  // first: who waits to send is told why
    line_->close();
  }

  /// What is wrong in a content ends its channel; the frames behind it can still be read.
  bool read_content(const FrameHead& head) {
    Inboxes::Piece content{std::make_unique_for_overwrite<char[]>(bytes_of(head)),
                           head.piece_bytes};
    if (!line_->read(content.data.get(), content.bytes)) return false;
    const bool whole = carries(head, content.data.get());
    switch (static_cast<FrameKind>(head.kind)) {
      case FrameKind::kMessage:
        if (!whole) {
          fail(head.channel, changed(head.from, "a message"));
        } else if (!inboxes_.add(head.channel, head.from, head.message_bytes, head.offset,
                                 std::move(content))) {
          fail(head.channel, senseless(head.from, "a piece of a message behind another one's"));
        }
        return true;
      case FrameKind::kError:
        fail(head.channel,
             whole ? error_in(head, content.data.get()) : changed(head.from, "an error"));
        return true;
      case FrameKind::kLeft:
        inboxes_.left(head.channel, head.from);
        return true;
      case FrameKind::kGone:
        inboxes_.gone(head.from, whole ? words_in(content.data.get(), content.bytes) : "");
        line_->hold(head.from, false);
        return true;
      case FrameKind::kFull:
      case FrameKind::kRoom:
        line_->hold(head.from, static_cast<FrameKind>(head.kind) == FrameKind::kFull);
        return true;
    }
    return false;
  }

  static size_t bytes_of(const FrameHead& head) { return static_cast<size_t>(head.piece_bytes); }

  Error error_in(const FrameHead& head, const char* content) const {
    ErrorHead error;
    std::memcpy(&error, content, sizeof error);
    if (!is_error(error.status) || error.rank < -1 || error.rank >= size())
      return senseless(head.from,
                       cat("status ", error.status, " of rank ", error.rank, " as an error"));
    return Error(static_cast<Status>(error.status),
                 words_in(content + sizeof error,
                          head.piece_bytes - static_cast<int64_t>(sizeof error)),
                 error.rank)
        .told_by(head.from);
  }

  std::unique_ptr<TcpHub> hub_;  // rank 0 alone
  std::unique_ptr<TcpLine> line_;
  Inboxes inboxes_;
  Error ended_ = TcpLine::broken();  // made while there is memory for it
  std::thread reader_;
};

void Posts::in_child() noexcept {
  for (TcpPost* post : posts_) post->forsake();
  posts_.clear();
  mutex_.unlock();
}

}  // namespace

std::shared_ptr<Post> make_post_over(int rank, int size, std::vector<Socket> connections) {
  if (rank > 0)
    return std::make_shared<TcpPost>(rank, size, std::move(connections.front()), nullptr);
  auto [mine, hubs] = socket_pair();
  connections.front() = std::move(hubs);
  auto hub = std::make_unique<TcpHub>(std::move(connections));
  return std::make_shared<TcpPost>(rank, size, std::move(mine), std::move(hub));
}

std::shared_ptr<Post> make_tcp_post(const TcpMeeting& meeting, int64_t timeout_ms) {
  check_meeting(meeting);
  const Deadline deadline = Deadline::in_ms(timeout_ms);
  if (meeting.rank == 0) return make_post_over(0, meeting.size, meet_all(meeting, deadline));
  std::vector<Socket> line;
  line.push_back(meet_rank_0(meeting, deadline));
  return make_post_over(meeting.rank, meeting.size, std::move(line));
}

std::shared_ptr<Post> make_folder_post(const FolderMeeting& meeting, int64_t timeout_ms) {
  const Deadline deadline = Deadline::in_ms(timeout_ms);
  return make_post_over(meeting.rank, meeting.size, meet_in_folder(meeting, deadline));
}

}  // namespace muonrt
