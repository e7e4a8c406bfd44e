#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "cuda_runtime.h"

namespace emulator {

/// Work in the order in which it was captured.
struct Graph {
  std::vector<std::function<bool()>> work;
  bool valid = true;  // nothing was asked for that cannot be captured
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id owner;  // who began
};

struct Stream {
  int device = 0;
  std::thread::id owner = std::this_thread::get_id();  // who made it
  bool blocking = true;                     // the default stream and it wait for one another
  std::unique_ptr<Graph> capture;           // while its work is recorded
  std::deque<std::function<bool()>> queue;  // false: it cannot run yet
  int64_t ran = 0;                          // entries before the queue's first
  bool running = false;
  const std::shared_ptr<char> life = std::make_shared<char>();
  int64_t end() const { return ran + static_cast<int64_t>(queue.size()); }
};

struct Event {
  int device = 0;
  Stream* stream = nullptr;   // null: never recorded
  std::weak_ptr<char> alive;  // the stream, whose address may be another's after its end
  int64_t position = 0;       // complete when the stream has run so many entries
  bool is_complete() const { return alive.expired() || stream->ran >= position; }
};

/// False if an entry on the way cannot run yet.
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
