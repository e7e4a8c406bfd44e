#pragma once

#include <memory>

#include "backend/device.hpp"

namespace muonrt {

/// Work of one stream that was recorded, to be enqueued again as a whole.
class Recording {
 public:
  virtual ~Recording() = default;
};

/// A device that can (CUDA: graphs). What is recorded keeps its arguments: memory must stay where
/// it is. Threads: as Device.
class Recorder {
 public:
  virtual ~Recorder() = default;
  /// Whether it was asked to.
  virtual bool records() const = 0;
  /// What is enqueued on `stream` from now on is recorded and does not run. It must not wait, take
  /// memory, or reach another stream.
  virtual void begin_recording(Stream& stream) = 0;
  virtual std::unique_ptr<Recording> end_recording(Stream& stream) = 0;
  /// Gives up what was recorded, after an error.
  virtual void drop_recording(Stream& stream) noexcept = 0;
  virtual void replay(Stream& stream, const Recording& recording) = 0;
};

/// The device's, or null: work is enqueued piece by piece.
inline Recorder* recorder_of(Device& device) {
  auto* const recorder = dynamic_cast<Recorder*>(&device);
  return recorder && recorder->records() ? recorder : nullptr;
}

/// Records what `enqueue` does.
template <class Enqueue>
std::unique_ptr<Recording> record_work(Recorder& recorder, Stream& stream, const Enqueue& enqueue) {
  recorder.begin_recording(stream);
  try {
    enqueue();
  } catch (...) {
    recorder.drop_recording(stream);
    throw;
  }
  return recorder.end_recording(stream);
}

}  // namespace muonrt
