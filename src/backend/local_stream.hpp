#pragma once

#include <memory>

#include "backend/device.hpp"
#include "base/function_ref.hpp"

namespace muonrt {

/// Waits until all work that is now on `stream` has ended, and then throws the device's first
/// error, if there is one. There is no timeout, because local passes always end, and because
/// returning early would free buffers that they still use.
/// @param mark  an event that is used for the wait.
void drain(Device& device, Stream& stream, Event& mark);

/// A stream for local work outside of a step, such as copying master weights or state.
class LocalStream {
 public:
  explicit LocalStream(Device& device);

  /// Later work on this stream starts after the work that the caller has already enqueued on the
  /// default stream. Errors, with a message that begins with `what`: NOT_SUPPORTED if that stream
  /// is being captured; TIMEOUT.
  void join_callers(const char* what, int64_t timeout_ms);

  /// Calls `work(stream)`, which enqueues work, and waits until this work has ended, even if `work`
  /// throws. The buffers of the work may then be freed. Errors: any error of `work` or of the
  /// device.
  void run(FunctionRef<void(Stream&)> work);

 private:
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> done_;
};

}  // namespace muonrt
