#pragma once

#include <atomic>
#include <deque>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "comm/frame.hpp"
#include "comm/socket.hpp"

namespace muonrt {

/// Rank 0's thread that hands frames on between the connections of all ranks, its own included. It
/// never waits for one of them, and reads on from all: what a rank does not take lies here until it
/// does. Whoever sends to a rank that is behind by more than its share of the memory is told to
/// stop; control frames, and messages to others, go on. Without memory, all connections end; that
/// of a rank that sends what is no frame ends alone. Checksums of heads are compared here, those of
/// contents by who receives them.
class TcpHub {
 public:
  explicit TcpHub(std::vector<Socket> connections);
  /// Delivers what lies here, for two seconds at most.
  ~TcpHub();

  /// In a child of this process: closes its copies.
  void forsake() noexcept {
    for (Rank& r : ranks_) r.socket = Socket();
    for (Socket* s : {&wake_here_, &wake_there_}) *s = Socket();
  }

 private:
  using Bytes = std::vector<char>;
  struct Rank {
    Socket socket;
    Bytes in;               // a frame that is not complete yet
    std::deque<Bytes> out;  // whole frames; the first from `sent` on
    size_t sent = 0;
    int64_t waiting = 0;     // bytes of `out`
    std::set<int32_t> held;  // who was told to send it no more
  };

  void serve();
  void run();
  bool empty() const;
  void read(int32_t rank);
  bool cut_frame(int32_t rank);
  void hand_on(int32_t from, Bytes frame);
  void say(const FrameHead& head, const std::string& content = {});
  void hold_if_behind(int32_t rank, int32_t sender);
  void let_go(int32_t rank);
  void write(int32_t rank);
  void write_out(Rank& r);
  void drop(int32_t rank, const char* why = "");

  std::vector<Rank> ranks_;
  int64_t share_ = 0;
  Socket wake_here_, wake_there_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace muonrt
