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

/// Rank 0's thread that hands frames on between the connections of all ranks, its own included. It
/// never waits for one of them: what a rank does not take lies here until it does. Whoever sends to
/// a rank that is behind by more than its share of the memory is told to stop; control frames, and
/// messages to others, go on. The connection of a rank that sends what is no frame ends. Checksums
/// of heads are compared here, those of contents by who receives them.
/// Memory is taken for frames that come, and nowhere else. Where there is none each connection has
/// one frame of its own; a rank whose frame is under way is not read until it is back.
class TcpRouter {
 public:
  explicit TcpRouter(std::vector<Socket> connections);
  /// Delivers what lies here, for two seconds at most.
  ~TcpRouter();

 private:
  struct Frame;
  using Queue = std::list<std::shared_ptr<Frame>>;
  /// `places` are its elements of the queues, when it is in none.
  struct Frame {
    Frame(int64_t capacity, size_t receivers);
    void set(const FrameHeader& head, std::string_view content = {});
    FrameHeader head() const;
    std::unique_ptr<char[]> data;
    size_t bytes = 0;
    Queue places;
  };
  using SharedFrame = std::shared_ptr<Frame>;
  static bool at_home(const SharedFrame& frame) { return frame.use_count() == 1; }

  struct Rank {
    Socket socket;
    FrameHeader head{};  // of the frame that comes
    size_t got = 0;      // of it, and its content
    SharedFrame coming;  // null: it has no memory yet
    Queue out;           // the first from `sent` on
    size_t sent = 0;
    int64_t waiting = 0;  // bytes of `out`
    // Made while there is memory: for a frame that finds none, for what it is told, for its end.
    SharedFrame spare, notice, goodbye_frame;
    std::vector<char> stopped, told;  // by rank: it shall send it no messages, and knows that

    bool needs_memory() const { return socket && got >= sizeof head && !coming; }
  };

  void run();
  bool empty() const;
  void look(int timeout_ms, bool stopping);
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
