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

/// A rank's connection to the router. It sends whole frames one after another: parts of messages,
/// whose senders wait, and control frames, for which no thread waits. If the socket does not accept
/// all bytes at once, the reader thread writes the rest. The memory for the rest of a frame, and
/// for the control frames of the channels that were entered, is allocated in advance. Threads:
/// `read`, `advance` and `pause` from one thread, the others from any.
class TcpConnection {
 public:
  using ErrorSource = std::function<std::optional<Error>()>;

  TcpConnection(Socket socket, int size);

  /// Reserves the memory of two control frames until `leave`.
  void enter();
  void leave() noexcept;

  /// Sends a part of a message. Returns when `content` may be reused. If the wait ends while the
  /// frame is partly written, the rest is sent from a copy. Errors: TIMEOUT; COMM if the connection
  /// has ended; the error that `find_error` returns.
  /// @param find_error  called before each wait, and again after recheck_error().
  void send(const FrameHeader& head, const void* content, Deadline deadline,
            const ErrorSource& find_error);
  /// Appends a control frame. Does not block.
  void queue_control(const FrameHeader& head, const char* content);
  /// Stops or resumes the sending of messages to `rank`.
  void pause_rank(int32_t rank, bool on);
  /// Wakes up the senders, so that they call their `find_error` again.
  void recheck_error();
  /// Returns true if a sender waits. The frame that ends its wait may not have been read yet.
  bool has_waiting_sender();
  /// Waits until all frames are written and the peer's system has acknowledged them.
  void flush(Deadline deadline);
  /// Ends the connection, and all waits.
  void close() noexcept;

  /// Reads exactly `bytes` bytes. Returns false if the connection has ended.
  bool read(void* data, int64_t bytes);
  /// Writes as many bytes as the socket accepts.
  void advance();
  /// Waits at most `ms` milliseconds without reading, and continues to write. Returns false if the
  /// connection has ended.
  bool pause(int ms);

  /// Returns the error of a connection that has ended.
  static Error broken();

 private:
  using Lock = std::unique_lock<std::mutex>;
  /// A frame in its sender's memory.
  struct OutgoingFrame {
    FrameHeader head;
    const char* content;
    int64_t at = 0;  // bytes written
    int64_t bytes() const { return static_cast<int64_t>(sizeof head) + head.payload_bytes; }
  };

  template <class Ready>
  void await(Lock& lock, int32_t to, Deadline deadline, const ErrorSource& find_error, Ready ready);
  void give_up() noexcept;
  bool is_paused(int32_t rank) const { return paused_[static_cast<size_t>(rank)] != 0; }
  bool pending() const { return outgoing_ || !frames_.empty(); }
  void write_out();
  bool write_outgoing();
  bool write_frame();
  bool written(const OutgoingFrame& frame, int64_t& at);
  void wait_for(short events, int ms);
  void wake_reader();

  Socket socket_;
  Socket wake_here_, wake_there_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::list<std::string> frames_;  // control frames
  size_t frame_at_ = 0;            // written bytes of the first one
  std::list<std::string> spare_;   // memory for later control frames
  size_t channels_ = 0;            // entered channels
  std::optional<OutgoingFrame> outgoing_;
  int64_t outgoing_number_ = 0;         // number of the last outgoing frame
  const std::unique_ptr<char[]> rest_;  // copy of a payload whose sender has returned
  std::vector<char> paused_;            // by rank
  int waiting_senders_ = 0;             // senders
  bool broken_ = false;                 // the connection has ended
};

}  // namespace muonrt
