#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "cuda_runtime.h"

namespace emulator {

/// Captured work, in the order in which it was captured.
struct Graph {
  std::vector<std::function<bool()>> work;
  bool valid = true;  // false after an operation that cannot be captured
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id owner;  // the thread that began the capture
};

struct Stream {
  int device = 0;
  std::thread::id owner = std::this_thread::get_id();  // the thread that created the stream
  bool blocking = true;                     // whether it synchronizes with the default stream
  std::unique_ptr<Graph> capture;           // the graph, while the stream is being captured
  std::deque<std::function<bool()>> queue;  // an entry returns false if it cannot run yet
  int64_t ran = 0;  // number of entries that have been removed from the queue
  bool running = false;
  const std::shared_ptr<char> life = std::make_shared<char>();
  int64_t end() const { return ran + static_cast<int64_t>(queue.size()); }
};

struct Event {
  int device = 0;
  Stream* stream = nullptr;   // null if the event was never recorded
  std::weak_ptr<char> alive;  // token of the stream; its address is not enough, because it may be
                              // reused
  int64_t position = 0;       // the event is complete when the stream has run this number of
                              // entries
  bool is_complete() const { return alive.expired() || stream->ran >= position; }
};

/// Returns false if an entry before the position cannot run yet.
inline bool run_until(Stream& stream, int64_t position) {
  while (stream.ran < position) {
    if (stream.running) return false;
    stream.running = true;
    bool done = true;
    try {
      done = stream.queue.front()();
    } catch (...) {
      stream.running = false;
      stream.queue.pop_front();
      ++stream.ran;
      throw;
    }
    stream.running = false;
    if (!done) return false;
    stream.queue.pop_front();
    ++stream.ran;
  }
  return true;
}

}  // namespace emulator
