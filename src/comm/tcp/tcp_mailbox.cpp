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

constexpr int kGoodbyeMs = 1000;       // for control frames that are not sent yet
constexpr int kMemoryRetryMs = 1000;   // retries of an allocation while this rank waits for a peer
constexpr int kMaxMemoryPauseMs = 20;  // between two retries

/// Returns the text of a peer without control characters, or "" if there is no memory for it.
std::string printable_text(const char* text, int64_t bytes) noexcept {
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
  TcpMailbox(int rank, int size, Socket connection, std::unique_ptr<TcpRouter> router)
      : Mailbox(rank, size),
        router_(std::move(router)),
        connection_(std::make_unique<TcpConnection>(std::move(connection), size)),
        receive_queues_(size),
        content_(std::make_unique_for_overwrite<char[]>(kMaxPayloadBytes)) {
    reader_ = start_thread("a connection", [this] { read_all(); });
  }

  ~TcpMailbox() override {
    connection_->flush(Deadline::in_ms(kGoodbyeMs));
    connection_->close();
    reader_.join();
    connection_.reset();  // the router detects that it has ended
  }

  std::string name() const override { return "tcp"; }

  void enter(uint64_t channel) override {
    receive_queues_.enter(channel);
    connection_->enter();
  }

  void send(uint64_t channel, int32_t to, const void* data, int64_t bytes,
            Deadline deadline) override {
    const auto find_error = [&] { return receive_queues_.ended(channel); };
    if (const auto error = find_error()) throw *error;
    for (int64_t at = 0; at < bytes; at += kMaxPayloadBytes) {
      connection_->send(message_frame(channel, rank(), to, data, bytes, at),
                        static_cast<const char*>(data) + at, deadline, find_error);
    }
  }

  void post_receives(uint64_t channel, std::span<PostedReceive> messages) override {
    receive_queues_.post_receives(channel, messages);
  }
  void cancel_receives(uint64_t channel) noexcept override {
    receive_queues_.cancel_receives(channel);
  }
  void wait_receives(uint64_t channel, Deadline deadline) override {
    receive_queues_.wait_receives(channel, deadline);
  }

  void publish(uint64_t channel, const Error& error) noexcept override {
    try {
      fail(channel, error.reported_by_rank(rank()));
      const ErrorFrameHeader head{static_cast<int32_t>(error.status()), error.rank()};
      const std::string& text = error.message();
      const auto length = std::min(text.size(), static_cast<size_t>(kTextLimit));
      char content[sizeof head + kTextLimit];
      std::memcpy(content, &head, sizeof head);
      std::memcpy(content + sizeof head, text.data(), length);
      send_to_all(FrameKind::kError, channel, content, static_cast<int64_t>(sizeof head + length));
    } catch (...) {  // a channel that was not entered: all peers detect the end of the connection
      connection_->close();
    }
  }

  std::optional<Error> published_error(uint64_t channel) override {
    return receive_queues_.failed(channel);
  }

  void leave(uint64_t channel) noexcept override {
    receive_queues_.leave(channel);
    try {
      send_to_all(FrameKind::kLeft, channel, "", 0);
    } catch (...) {  // a channel that was not entered
    }
    connection_->leave();  // last, because the kLeft frame uses its memory
  }

 private:
  void send_to_all(FrameKind kind, uint64_t channel, const char* content, int64_t bytes) {
    connection_->queue_control(control_frame(kind, channel, rank(), kToAll, content, bytes),
                               content);
  }

  /// Ends all waits on the channel with an error.
  void fail(uint64_t channel, Error error) {
    receive_queues_.fail(channel, std::move(error));
    connection_->recheck_error();
  }

  void read_all() {
    FrameHeader head;
    while (connection_->read(&head, sizeof head)) {
      if (const char* const problem = frame_problem(head, size())) {
        end_error_ = muonrt::disconnected_error(0, problem);  // which forwards all messages
        break;
      }
      if (!connection_->read(content_.get(), head.payload_bytes) || !take(head)) break;
      connection_->advance();
    }
    receive_queues_.close(std::move(end_error_));  // first, so that waiting senders get this error
    connection_->close();
  }

  /// Processes a frame. An invalid payload ends only its channel, because later frames can still be
  /// read. Returns false if the connection has ended.
  bool take(const FrameHeader& head) {
    const char* const content = content_.get();
    const bool intact = payload_matches(head, content);
    switch (static_cast<FrameKind>(head.kind)) {
      case FrameKind::kMessage:
        return with_memory(head.channel, [&] {
          if (!intact) {
            fail(head.channel, checksum_error(head.from, "a message"));
          } else if (!receive_queues_.add(head, content)) {
            fail(head.channel,
                 invalid_message_error(head.from, "a part of a message is out of order"));
          }
        });
      case FrameKind::kError:
        return with_memory(head.channel, [&] {
          fail(head.channel,
               intact ? error_in(head, content) : checksum_error(head.from, "an error"));
        });
      case FrameKind::kLeft:
        return with_memory(head.channel, [&] { receive_queues_.left(head.channel, head.from); });
      case FrameKind::kDisconnected:
        receive_queues_.disconnect(head.from,
                                   intact ? printable_text(content, head.payload_bytes) : "");
        connection_->pause_rank(head.from, false);
        return true;
      case FrameKind::kPause:
      case FrameKind::kResume:
        connection_->pause_rank(head.from, static_cast<FrameKind>(head.kind) == FrameKind::kPause);
        return true;
    }
    return false;
  }

  /// Runs `function` again while its allocation fails. If this rank waits for another message or to
  /// send, which may depend on a later frame, the retries end after kMemoryRetryMs. Then the
  /// channel ends with OUT_OF_MEMORY; if this rank has not entered it, the whole connection ends.
  /// Returns false if the connection has ended.
  template <class Function>
  bool with_memory(uint64_t channel, const Function& function) {
    Deadline retry_deadline = Deadline::in_ms(kMemoryRetryMs);
    for (int ms = 1;; ms = std::min(2 * ms, kMaxMemoryPauseMs)) {
      try {
        function();
        return true;
      } catch (const std::bad_alloc&) {
      }
      if (!receive_queues_.has_pending_receives() && !connection_->has_waiting_sender()) {
        retry_deadline = Deadline::in_ms(kMemoryRetryMs);
      } else if (retry_deadline.passed() && !try_to_end(channel)) {
        return false;
      }
      if (!connection_->pause(ms)) return false;
    }
  }

  /// Ends the channel. Returns false if there is no memory to store its error, because the channel
  /// was not entered.
  bool try_to_end(uint64_t channel) noexcept {
    try {
      fail(channel, memory_error_);
      return true;
    } catch (const std::bad_alloc&) {
      end_error_ = memory_error_;
      return false;
    }
  }

  Error error_in(const FrameHeader& head, const char* content) const {
    ErrorFrameHeader error;
    std::memcpy(&error, content, sizeof error);
    if (!is_error(error.status) || error.rank < -1 || error.rank >= size())
      return invalid_message_error(head.from, "an error has status ", error.status, " and rank ",
                                   error.rank);
    const auto status = static_cast<Status>(error.status);
    std::string text = printable_text(content + sizeof error,
                                      head.payload_bytes - static_cast<int64_t>(sizeof error));
    const Error error_of_peer =
        text.empty() ? Error(status, error.rank) : Error(status, std::move(text), error.rank);
    return error_of_peer.reported_by_rank(head.from);
  }

  std::unique_ptr<TcpRouter> router_;  // only on rank 0
  std::unique_ptr<TcpConnection> connection_;
  ReceiveQueues receive_queues_;
  Error end_error_ = TcpConnection::broken();  // created while there is memory for it
  const Error memory_error_ = early_message_memory_error(rank());
  const std::unique_ptr<char[]> content_;  // payload of the current frame
  std::thread reader_;
};

}  // namespace

std::shared_ptr<Mailbox> make_mailbox_over(int rank, int size, std::vector<Socket> connections) {
  if (rank > 0)
    return std::make_shared<TcpMailbox>(rank, size, std::move(connections.front()), nullptr);
  auto [mine, router_end] = socket_pair();
  connections.front() = std::move(router_end);
  auto router = std::make_unique<TcpRouter>(std::move(connections));
  return std::make_shared<TcpMailbox>(rank, size, std::move(mine), std::move(router));
}

std::shared_ptr<Mailbox> make_tcp_mailbox(const TcpRendezvous& rendezvous, int64_t timeout_ms) {
  check_rendezvous(rendezvous);
  const Deadline deadline = Deadline::in_ms(timeout_ms);
  if (rendezvous.rank == 0)
    return make_mailbox_over(0, rendezvous.size, accept_all_ranks(rendezvous, deadline));
  // Allocated before rank 0 accepts this rank.
  auto connection = retry_while_out_of_memory(deadline, [] { return std::vector<Socket>(1); });
  connection[0] = connect_to_rank_0(rendezvous, deadline);
  return make_mailbox_over(rendezvous.rank, rendezvous.size, std::move(connection));
}

std::shared_ptr<Mailbox> make_folder_mailbox(const FolderRendezvous& rendezvous,
                                             int64_t timeout_ms) {
  const Deadline deadline = Deadline::in_ms(timeout_ms);
  return make_mailbox_over(rendezvous.rank, rendezvous.size,
                           rendezvous_in_folder(rendezvous, deadline));
}

}  // namespace muonrt
