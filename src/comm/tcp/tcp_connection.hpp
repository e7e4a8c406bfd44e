#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/tcp/frame.hpp"
#include "comm/tcp/socket.hpp"

namespace muonrt {

/// A rank's connection to the hub. Frames go out whole, one after another: pieces of messages,
/// whose senders wait for them, and control frames, for which nobody does. What the socket does not
/// take at once, the thread that reads writes later. Memory for the rest of a piece, and for the
/// control frames of channels that were entered, is taken before.
/// Threads: `read` and `advance` one, the others any.
class TcpConnection {
 public:
  using ErrorSource = std::function<std::optional<Error>()>;

  TcpConnection(Socket socket, int size);

  /// Takes the memory of two control frames, until `leave`.
  void enter();
  void leave() noexcept;

  /// Returns when `content` may be reused. A wait ends with `trouble` as soon as that tells of some
  /// (asked again at `look_again`), and with TIMEOUT; what has begun then still goes out, as a
  /// copy. Errors: COMM if the connection has ended.
  void send(const FrameHeader& head, const void* content, Deadline deadline,
            const ErrorSource& trouble);
  /// Never waits.
  void mailbox(const FrameHeader& head, const char* content);
  /// Messages to `rank` wait, or no longer.
  void pause_rank(int32_t rank, bool on);
  void recheck_error();
  /// Whether a sender waits: what would let it go on may not have been read.
  bool waits();
  /// Waits until no frame is left to be written.
  void flush(Deadline deadline);
  /// Ends the connection, and all waits.
  void close() noexcept;

  /// Waits for all of them; false when the connection has ended.
  bool read(void* data, int64_t bytes);
  /// Writes what the socket takes.
  void advance();
  /// Waits `ms`, reads nothing, writes on; false when the connection has ended.
  bool pause(int ms);

  static Error broken();

 private:
  using Lock = std::unique_lock<std::mutex>;
  /// A frame in its sender's memory, of which `at` bytes are written.
  struct OutgoingFrame {
    FrameHeader head;
    const char* content;
    int64_t at = 0;
    int64_t bytes() const { return static_cast<int64_t>(sizeof head) + head.payload_bytes; }
  };

  template <class Ready>
  void await(Lock& lock, int32_t to, Deadline deadline, const ErrorSource& trouble, Ready ready);
  void give_up() noexcept;
  bool holds(int32_t rank) const { return held_[static_cast<size_t>(rank)] != 0; }
  bool pending() const { return piece_ || !frames_.empty(); }
  void write_out();
  bool write_piece();
  bool write_frame();
  bool written(const OutgoingFrame& piece, int64_t& at);
  void wait_for(short events, int ms);
  void wake_reader();

  Socket socket_;
  Socket wake_here_, wake_there_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::list<std::string> frames_;  // whole but for the first, of which `frame_at_` is written
  size_t frame_at_ = 0;
  std::list<std::string> spare_;  // memory for frames to come
  size_t channels_ = 0;           // that were entered
  std::optional<OutgoingFrame> piece_;
  int64_t pieces_ = 0;                  // so far
  const std::unique_ptr<char[]> rest_;  // a piece's content, when its sender waits no longer
  std::vector<char> held_;              // by rank
  int waiting_ = 0;                     // senders
  bool broken_ = false;
};

}  // namespace muonrt
