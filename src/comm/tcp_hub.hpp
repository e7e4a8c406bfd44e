#pragma once

#include <atomic>
#include <deque>
#include <thread>
#include <vector>

#include "comm/frame.hpp"
#include "comm/socket.hpp"

namespace muonrt {

/// Rank 0's thread that hands frames on between the connections of all ranks, its own included. It
/// never waits for one of them: what a rank does not take lies here until it does.
class TcpHub {
 public:
  explicit TcpHub(std::vector<Socket> connections);
  /// Delivers what lies here, for two seconds at most.
  ~TcpHub();

 private:
  using Bytes = std::vector<char>;
  struct Rank {
    Socket socket;
    Bytes in;               // a frame that is not complete yet
    std::deque<Bytes> out;  // whole frames; the first from `sent` on
    size_t sent = 0;
  };

  void run();
  void read(int32_t rank);
  bool cut_frame(int32_t rank);
  void hand_on(int32_t from, Bytes frame);
  void write(int32_t rank);
  void drop(int32_t rank);

  std::vector<Rank> ranks_;
  int64_t waiting_bytes_ = 0;
  Socket wake_here_, wake_there_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace muonrt
