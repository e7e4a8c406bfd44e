#pragma once

#include <memory>

#include "backend/device.hpp"

namespace muonrt {

/// Work of one stream that was recorded, to be enqueued again as a whole.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

/// A device that can (CUDA: graphs). What is recorded keeps its arguments: memory must stay where
/// it is. Threads: as Device.
class GraphCapture {
 public:
  virtual ~GraphCapture() = default;
  /// Whether it was asked to.
  virtual bool captures_graphs() const = 0;
  /// What is enqueued on `stream` from now on is recorded and does not run. It must not wait, take
  /// memory, or reach another stream.
  virtual void begin_graph_capture(Stream& stream) = 0;
  virtual std::unique_ptr<DeviceGraph> end_graph_capture(Stream& stream) = 0;
  /// Gives up what was recorded, after an error.
  virtual void abort_graph_capture(Stream& stream) noexcept = 0;
  virtual void launch_graph(Stream& stream, const DeviceGraph& recording) = 0;
};

/// The device's, or null: work is enqueued piece by piece.
inline GraphCapture* graph_capture_of(Device& device) {
  auto* const recorder = dynamic_cast<GraphCapture*>(&device);
  return recorder && recorder->captures_graphs() ? recorder : nullptr;
}

/// Records what `enqueue` does.
template <class Enqueue>
std::unique_ptr<DeviceGraph> capture_graph(GraphCapture& recorder, Stream& stream,
                                           const Enqueue& enqueue) {
  recorder.begin_graph_capture(stream);
  try {
    enqueue();
  } catch (...) {
    recorder.abort_graph_capture(stream);
    throw;
  }
  return recorder.end_graph_capture(stream);
}

}  // namespace muonrt
