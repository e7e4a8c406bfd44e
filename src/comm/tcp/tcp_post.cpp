#include "comm/tcp/tcp_post.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>

#include "base/backoff.hpp"
#include "base/peer_status.hpp"
#include "base/signal_mask.hpp"
#include "comm/tcp/frame.hpp"
#include "comm/tcp/inboxes.hpp"
#include "comm/tcp/tcp_hub.hpp"
#include "comm/tcp/tcp_line.hpp"

namespace muonrt {

namespace {

constexpr int kFarewellMs = 1000;        // for frames that nobody waits for
constexpr int kMemoryPatienceMs = 1000;  // for memory, while other messages are waited for
constexpr int kLookMs = 20;              // at most, between two looks for memory

/// A peer's words, without what a terminal would act on; none where there is no memory for them.
std::string words_in(const char* text, int64_t bytes) noexcept {
  std::string out;
  try {
    out.assign(text, static_cast<size_t>(bytes));
  } catch (const std::bad_alloc&) {
  }
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);  // char is unsigned on arm64
    if ((byte < ' ' && byte != '\n') || byte == 127) c = '?';
  }
  return out;
}

class TcpPost final : public Post {
 public:
  TcpPost(int rank, int size, Socket line, std::unique_ptr<TcpHub> hub)
      : Post(rank, size),
        hub_(std::move(hub)),
        line_(std::make_unique<TcpLine>(std::move(line), size)),
        inboxes_(size),
        content_(std::make_unique_for_overwrite<char[]>(kPieceLimit)) {
    reader_ = start_thread("a connection", [this] { read_all(); });
  }

  ~TcpPost() override {
    line_->flush(Deadline::in_ms(kFarewellMs));
    line_->close();
    reader_.join();
    line_.reset();  // the hub sees its end
  }

  std::string name() const override { return "tcp"; }

  void enter(uint64_t channel) override {
    inboxes_.enter(channel);
    line_->enter();
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

  void expect(uint64_t channel, std::span<Awaited> messages) override {
    inboxes_.expect(channel, messages);
  }
  void forget(uint64_t channel) noexcept override { inboxes_.forget(channel); }
  void await(uint64_t channel, Deadline deadline) override { inboxes_.await(channel, deadline); }

  void publish(uint64_t channel, const Error& error) noexcept override {
    try {
      fail(channel, error.told_by(rank()));
      const ErrorHead head{static_cast<int32_t>(error.status()), error.rank()};
      const std::string& words = error.message();
      const auto length = std::min(words.size(), static_cast<size_t>(kTextLimit));
      char content[sizeof head + kTextLimit];
      std::memcpy(content, &head, sizeof head);
      std::memcpy(content + sizeof head, words.data(), length);
      tell_all(FrameKind::kError, channel, content, static_cast<int64_t>(sizeof head + length));
    } catch (...) {  // a channel that was not entered: the end of the connection tells everybody
      line_->close();
    }
  }

  std::optional<Error> published(uint64_t channel) override { return inboxes_.failed(channel); }

  void leave(uint64_t channel) noexcept override {
    inboxes_.leave(channel);
    try {
      tell_all(FrameKind::kLeft, channel, "", 0);
    } catch (...) {  // a channel that was not entered
    }
    line_->leave();  // last: its memory has been there for the farewell
  }

 private:
  void tell_all(FrameKind kind, uint64_t channel, const char* content, int64_t bytes) {
    line_->post(control_frame(kind, channel, rank(), kToAll, content, bytes), content);
  }

  /// Ends what waits on the channel, to receive or to send.
  void fail(uint64_t channel, Error error) {
    inboxes_.fail(channel, std::move(error));
    line_->look_again();
  }

  void read_all() {
    FrameHead head;
    while (line_->read(&head, sizeof head)) {
      if (const char* const fault = fault_of(head, size())) {
        ended_ = muonrt::gone(0, fault);  // which carries all messages
        break;
      }
      if (!line_->read(content_.get(), head.piece_bytes) || !take(head)) break;
      line_->advance();
    }
    inboxes_.close(std::move(ended_));  // first: who waits to send is told why
    line_->close();
  }

  /// What is wrong in a content ends its channel; the frames behind it can still be read. False
  /// when the connection has ended.
  bool take(const FrameHead& head) {
    const char* const content = content_.get();
    const bool whole = carries(head, content);
    switch (static_cast<FrameKind>(head.kind)) {
      case FrameKind::kMessage:
        return with_memory(head.channel, [&] {
          if (!whole) {
            fail(head.channel, changed(head.from, "a message"));
          } else if (!inboxes_.add(head, content)) {
            fail(head.channel, senseless(head.from, "a piece of a message behind another one's"));
          }
        });
      case FrameKind::kError:
        return with_memory(head.channel, [&] {
          fail(head.channel, whole ? error_in(head, content) : changed(head.from, "an error"));
        });
      case FrameKind::kLeft:
        return with_memory(head.channel, [&] { inboxes_.left(head.channel, head.from); });
      case FrameKind::kGone:
        inboxes_.gone(head.from, whole ? words_in(content, head.piece_bytes) : "");
        line_->hold(head.from, false);
        return true;
      case FrameKind::kFull:
      case FrameKind::kRoom:
        line_->hold(head.from, static_cast<FrameKind>(head.kind) == FrameKind::kFull);
        return true;
    }
    return false;
  }

  /// Tries again until there is memory for `work`, or its receiver expects what has come. Where
  /// this rank waits for something else, which may lie behind it, only for a while: then the
  /// channel ends, and all of them where this rank has not entered it. False when the connection
  /// has ended.
  template <class Work>
  bool with_memory(uint64_t channel, const Work& work) {
    Deadline patience = Deadline::in_ms(kMemoryPatienceMs);
    for (int ms = 1;; ms = std::min(2 * ms, kLookMs)) {
      try {
        work();
        return true;
      } catch (const std::bad_alloc&) {
      }
      if (!inboxes_.waits() && !line_->waits()) {
        patience = Deadline::in_ms(kMemoryPatienceMs);
      } else if (patience.passed() && !try_to_end(channel)) {
        return false;
      }
      if (!line_->pause(ms)) return false;
    }
  }

  /// False: there is no memory to keep the error of a channel that was not entered.
  bool try_to_end(uint64_t channel) noexcept {
    try {
      fail(channel, no_room_);
      return true;
    } catch (const std::bad_alloc&) {
      ended_ = no_room_;
      return false;
    }
  }

  Error error_in(const FrameHead& head, const char* content) const {
    ErrorHead error;
    std::memcpy(&error, content, sizeof error);
    if (!is_error(error.status) || error.rank < -1 || error.rank >= size())
      return senseless(head.from, "status ", error.status, " of rank ", error.rank, " as an error");
    const auto status = static_cast<Status>(error.status);
    std::string words =
        words_in(content + sizeof error, head.piece_bytes - static_cast<int64_t>(sizeof error));
    const Error told =
        words.empty() ? Error(status, error.rank) : Error(status, std::move(words), error.rank);
    return told.told_by(head.from);
  }

  std::unique_ptr<TcpHub> hub_;  // rank 0 alone
  std::unique_ptr<TcpLine> line_;
  Inboxes inboxes_;
  Error ended_ = TcpLine::broken();  // made while there is memory for it
  const Error no_room_ = no_room_for_early(rank());
  const std::unique_ptr<char[]> content_;  // of the frame that is read
  std::thread reader_;
};

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
  // Before rank 0 lets this rank in.
  auto line = patiently(deadline, [] { return std::vector<Socket>(1); });
  line[0] = meet_rank_0(meeting, deadline);
  return make_post_over(meeting.rank, meeting.size, std::move(line));
}

std::shared_ptr<Post> make_folder_post(const FolderMeeting& meeting, int64_t timeout_ms) {
  const Deadline deadline = Deadline::in_ms(timeout_ms);
  return make_post_over(meeting.rank, meeting.size, meet_in_folder(meeting, deadline));
}

}  // namespace muonrt
