#include "comm/tcp/tcp_mailbox.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <thread>

#include "base/backoff.hpp"
#include "base/peer_status.hpp"
#include "base/signal_mask.hpp"
#include "comm/tcp/frame.hpp"
#include "comm/tcp/receive_queues.hpp"
#include "comm/tcp/tcp_connection.hpp"
#include "comm/tcp/tcp_router.hpp"

namespace muonrt {

namespace {

constexpr int kGoodbyeMs = 1000;         // for frames that nobody waits for
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

class TcpMailbox final : public Mailbox {
 public:
  TcpMailbox(int rank, int size, Socket line, std::unique_ptr<TcpRouter> router)
      : Mailbox(rank, size),
        hub_(std::move(router)),
        line_(std::make_unique<TcpConnection>(std::move(line), size)),
        inboxes_(size),
        content_(std::make_unique_for_overwrite<char[]>(kMaxPayloadBytes)) {
    reader_ = start_thread("a connection", [this] { read_all(); });
  }

  ~TcpMailbox() override {
    line_->flush(Deadline::in_ms(kGoodbyeMs));
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
    for (int64_t at = 0; at < bytes; at += kMaxPayloadBytes) {
      line_->send(message_frame(channel, rank(), to, data, bytes, at),
                  static_cast<const char*>(data) + at, deadline, trouble);
    }
  }

  void post_receives(uint64_t channel, std::span<PostedReceive> messages) override {
    inboxes_.post_receives(channel, messages);
  }
  void cancel_receives(uint64_t channel) noexcept override { inboxes_.cancel_receives(channel); }
  void wait_receives(uint64_t channel, Deadline deadline) override {
    inboxes_.wait_receives(channel, deadline);
  }

  void publish(uint64_t channel, const Error& error) noexcept override {
    try {
      fail(channel, error.reported_by_rank(rank()));
      const ErrorFrameHeader head{static_cast<int32_t>(error.status()), error.rank()};
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

  std::optional<Error> published_error(uint64_t channel) override {
    return inboxes_.failed(channel);
  }

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
    line_->mailbox(control_frame(kind, channel, rank(), kToAll, content, bytes), content);
  }

  /// Ends what waits on the channel, to receive or to send.
  void fail(uint64_t channel, Error error) {
    inboxes_.fail(channel, std::move(error));
    line_->recheck_error();
  }

  void read_all() {
    FrameHeader head;
    while (line_->read(&head, sizeof head)) {
      if (const char* const fault = frame_problem(head, size())) {
        ended_ = muonrt::disconnected_error(0, fault);  // which carries all messages
        break;
      }
      if (!line_->read(content_.get(), head.payload_bytes) || !take(head)) break;
      line_->advance();
    }
    inboxes_.close(std::move(ended_));  // first: who waits to send is told why
    line_->close();
  }

  /// What is wrong in a content ends its channel; the frames behind it can still be read. False
  /// when the connection has ended.
  bool take(const FrameHeader& head) {
    const char* const content = content_.get();
    const bool whole = payload_matches(head, content);
    switch (static_cast<FrameKind>(head.kind)) {
      case FrameKind::kMessage:
        return with_memory(head.channel, [&] {
          if (!whole) {
            fail(head.channel, checksum_error(head.from, "a message"));
          } else if (!inboxes_.add(head, content)) {
            fail(head.channel,
                 invalid_message_error(head.from, "a piece of a message behind another one's"));
          }
        });
      case FrameKind::kError:
        return with_memory(head.channel, [&] {
          fail(head.channel,
               whole ? error_in(head, content) : checksum_error(head.from, "an error"));
        });
      case FrameKind::kLeft:
        return with_memory(head.channel, [&] { inboxes_.left(head.channel, head.from); });
      case FrameKind::kDisconnected:
        inboxes_.gone(head.from, whole ? words_in(content, head.payload_bytes) : "");
        line_->pause_rank(head.from, false);
        return true;
      case FrameKind::kPause:
      case FrameKind::kResume:
        line_->pause_rank(head.from, static_cast<FrameKind>(head.kind) == FrameKind::kPause);
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
      if (!inboxes_.has_pending_receives() && !line_->waits()) {
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

  Error error_in(const FrameHeader& head, const char* content) const {
    ErrorFrameHeader error;
    std::memcpy(&error, content, sizeof error);
    if (!is_error(error.status) || error.rank < -1 || error.rank >= size())
      return invalid_message_error(head.from, "status ", error.status, " of rank ", error.rank,
                                   " as an error");
    const auto status = static_cast<Status>(error.status);
    std::string words =
        words_in(content + sizeof error, head.payload_bytes - static_cast<int64_t>(sizeof error));
    const Error told =
        words.empty() ? Error(status, error.rank) : Error(status, std::move(words), error.rank);
    return told.reported_by_rank(head.from);
  }

  std::unique_ptr<TcpRouter> hub_;  // rank 0 alone
  std::unique_ptr<TcpConnection> line_;
  ReceiveQueues inboxes_;
  Error ended_ = TcpConnection::broken();  // made while there is memory for it
  const Error no_room_ = early_message_memory_error(rank());
  const std::unique_ptr<char[]> content_;  // of the frame that is read
  std::thread reader_;
};

}  // namespace

std::shared_ptr<Mailbox> make_mailbox_over(int rank, int size, std::vector<Socket> connections) {
  if (rank > 0)
    return std::make_shared<TcpMailbox>(rank, size, std::move(connections.front()), nullptr);
  auto [mine, hubs] = socket_pair();
  connections.front() = std::move(hubs);
  auto router = std::make_unique<TcpRouter>(std::move(connections));
  return std::make_shared<TcpMailbox>(rank, size, std::move(mine), std::move(router));
}

std::shared_ptr<Mailbox> make_tcp_mailbox(const TcpRendezvous& rendezvous, int64_t timeout_ms) {
  check_rendezvous(rendezvous);
  const Deadline deadline = Deadline::in_ms(timeout_ms);
  if (rendezvous.rank == 0)
    return make_mailbox_over(0, rendezvous.size, accept_all_ranks(rendezvous, deadline));
  // Before rank 0 lets this rank in.
  auto line = retry_while_out_of_memory(deadline, [] { return std::vector<Socket>(1); });
  line[0] = connect_to_rank_0(rendezvous, deadline);
  return make_mailbox_over(rendezvous.rank, rendezvous.size, std::move(line));
}

std::shared_ptr<Mailbox> make_folder_mailbox(const FolderRendezvous& rendezvous,
                                             int64_t timeout_ms) {
  const Deadline deadline = Deadline::in_ms(timeout_ms);
  return make_mailbox_over(rendezvous.rank, rendezvous.size,
                           rendezvous_in_folder(rendezvous, deadline));
}

}  // namespace muonrt
