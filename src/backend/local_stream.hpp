#pragma once

#include <memory>

#include "backend/device.hpp"
#include "base/function_ref.hpp"

namespace muonrt {

/// Waits until all work enqueued on `stream` so far has ended, then throws the device's first
/// error, if any. There is no timeout: local passes always end, and an early return would free
/// buffers that they still use.
/// @param mark  used for the wait.
void drain(Device& device, Stream& stream, Event& mark);

/// A stream for local work outside of a step, such as copying master weights or state.
class LocalStream {
 public:
  explicit LocalStream(Device& device);

  /// Waits for the work that the caller has enqueued on the default stream. Later work starts after
  /// it. Errors, whose text begins with `what`: NOT_SUPPORTED if that stream is being captured;
  /// TIMEOUT.
  void join_callers(const char* what, int64_t timeout_ms);

  /// Calls `work(stream)`, which enqueues work, and waits until this work has ended, even if `work`
  /// throws. Its buffers can be freed afterwards. Errors: those of `work` and of the device.
  void run(FunctionRef<void(Stream&)> work);

 private:
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> done_;
};

}  // namespace muonrt
