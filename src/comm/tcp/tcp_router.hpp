#pragma once

#include <poll.h>

#include <atomic>
#include <list>
#include <memory>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/tcp/frame.hpp"
#include "comm/tcp/socket.hpp"

namespace muonrt {

/// A thread of rank 0 that forwards frames between the connections of all ranks, including rank 0.
/// It never waits for one connection: it stores frames until their receiver accepts them. If more
/// bytes than a receiver's share wait for it, the router asks the senders to pause;
/// control frames and messages to other ranks continue. A frame with an invalid header ends its
/// connection. The router checks the checksums of headers, and receivers those of payloads.
/// Memory is allocated only for frames that arrive. If that fails, a connection uses its reserved
/// frame, and it is not read again until that frame has been forwarded.
class TcpRouter {
 public:
  /// @param connections  of all ranks; entry 0 is the router's end of the connection of rank 0.
  explicit TcpRouter(std::vector<Socket> connections);
  /// Delivers the stored frames, for at most two seconds.
  ~TcpRouter();

 private:
  struct Frame;
  using Queue = std::list<std::shared_ptr<Frame>>;
  /// A frame, which may be in several queues.
  struct Frame {
    Frame(int64_t capacity, size_t receivers);
    void set(const FrameHeader& head, std::string_view content = {});
    FrameHeader head() const;
    std::unique_ptr<char[]> data;
    size_t bytes = 0;
    Queue elements;  // list elements that are not in a queue
  };
  using SharedFrame = std::shared_ptr<Frame>;
  static bool is_unused(const SharedFrame& frame) { return frame.use_count() == 1; }

  struct Rank {
    Socket socket;
    FrameHeader head{};    // of the frame that is read
    size_t got = 0;        // bytes read of the frame
    SharedFrame incoming;  // null: the frame has no memory yet
    Queue out;
    size_t sent = 0;      // bytes sent of the first frame in `out`
    int64_t waiting = 0;  // bytes in `out`
    // Allocated in advance: for a frame without memory, for kPause and kResume, for kDisconnected.
    SharedFrame spare, notice, goodbye_frame;
    // By rank: 1 if this rank must not send messages to that one, and 1 if it has been notified.
    std::vector<char> paused, notified;

    bool needs_memory() const { return socket && got >= sizeof head && !incoming; }
  };

  void run();
  bool empty() const;
  void poll_sockets(int timeout_ms, bool stopping);
  void read(int32_t rank);
  bool receive(int32_t rank, char* to, size_t end);
  bool check(int32_t rank);
  void find_memory(int32_t rank);
  void forward_frame(int32_t from, const SharedFrame& frame);
  void pause_sender(int32_t rank, int32_t sender);
  void resume_senders(int32_t rank);
  void send_notice(int32_t rank);
  void write(int32_t rank);
  static bool write_out(Rank& r);
  static void pop(Rank& r);
  void drop(int32_t rank, const char* why = "");
  Rank& at(int32_t rank) { return ranks_[static_cast<size_t>(rank)]; }

  std::vector<Rank> ranks_;
  std::vector<pollfd> fds_;
  int64_t share_ = 0;
  Socket wake_here_, wake_there_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace muonrt
