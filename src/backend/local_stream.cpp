#include "backend/local_stream.hpp"

namespace muonrt {

void drain(Device& device, Stream& stream, Event& mark) {
  device.record(mark, stream);
  device.synchronize(mark, Deadline::in_ms(kMaxTimeoutMs));
  if (const auto error = device.error()) throw *error;
}

LocalStream::LocalStream(Device& device)
    : device_(device),
      stream_(device.create_stream(StreamKind::kCompute)),
      done_(device.create_event()) {}

void LocalStream::join_callers(const char* what, int64_t timeout_ms) {
  device_.wait_caller_stream(*stream_, nullptr, what);
  device_.synchronize_caller_stream(Deadline::in_ms(timeout_ms));
}

void LocalStream::run(FunctionRef<void(Stream&)> work) {
  try {
    work(*stream_);
  } catch (...) {
    drain(device_, *stream_, *done_);
    throw;
  }
  drain(device_, *stream_, *done_);
}

}  // namespace muonrt
