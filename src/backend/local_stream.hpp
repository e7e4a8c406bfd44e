#pragma once

#include <memory>

#include "backend/device.hpp"
#include "base/function_ref.hpp"

namespace muonrt {

/// Waits until all work that is now on `stream` is complete, and then throws the device's first
/// error, if there is one. The wait has no timeout, because local passes always end. After a
/// timeout, the caller would free buffers that the passes still use.
/// @param mark  An event that this function uses for the wait.
void drain(Device& device, Stream& stream, Event& mark);

/// A stream for local work outside a step, such as copying master weights or state.
class LocalStream {
 public:
  explicit LocalStream(Device& device);

  /// Makes later work on this stream start after the work that the caller has already enqueued on
  /// the default stream. Errors, with a message that begins with `what`: NOT_SUPPORTED if the
  /// default stream is being captured; TIMEOUT.
  void join_callers(const char* what, int64_t timeout_ms);

  /// Calls `work(stream)`, which enqueues work, and waits until that work is complete, even if
  /// `work` throws. The caller may then free the buffers of the work. Errors: any error of `work`
  /// or of the device.
  void run(FunctionRef<void(Stream&)> work);

 private:
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> done_;
};

}  // namespace muonrt
