#pragma once

#include <memory>

#include "backend/device.hpp"
#include "base/function_ref.hpp"

namespace muonrt {

/// Waits until everything that was enqueued on `stream` so far has ended, then reports the first
/// error of the device. Local passes end by themselves, so there is no deadline: to give up on them
/// would free buffers that they still use.
/// @param mark  is recorded.
void drain(Device& device, Stream& stream, Event& mark);

/// A stream for local work outside of a step, such as taking master weights or copying state.
class LocalStream {
 public:
  explicit LocalStream(Device& device);

  /// Work from now on starts after what the caller has enqueued on the default stream, for which
  /// this waits. Errors, beginning with `what`: NOT_SUPPORTED (that stream is being captured),
  /// TIMEOUT.
  void join_callers(const char* what, int64_t timeout_ms);

  /// Runs `work(stream)`, which enqueues, and returns once all of it has ended, also if `work`
  /// throws: what it has used can be freed then. Errors: those of `work` and of the device.
  void run(FunctionRef<void(Stream&)> work);

 private:
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> done_;
};

}  // namespace muonrt
