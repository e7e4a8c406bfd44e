#pragma once

#include <memory>

#include "backend/device.hpp"

namespace muonrt {

/// Work of one stream that was captured and can be launched again as a whole.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

/// A device that can capture graphs (CUDA). A graph keeps the arguments of its work, so their
/// memory must not move. Threads: as Device.
class GraphCapture {
 public:
  virtual ~GraphCapture() = default;
  /// Returns whether graphs are enabled for this device.
  virtual bool captures_graphs() const = 0;
  /// Begins a capture: work enqueued on `stream` from now on is captured and does not run. It must
  /// not wait, allocate memory, or use another stream.
  virtual void begin_graph_capture(Stream& stream) = 0;
  virtual std::unique_ptr<DeviceGraph> end_graph_capture(Stream& stream) = 0;
  /// Discards the capture after an error.
  virtual void abort_graph_capture(Stream& stream) noexcept = 0;
  virtual void launch_graph(Stream& stream, const DeviceGraph& graph) = 0;
};

/// Returns the device as a GraphCapture, or null if it captures no graphs.
inline GraphCapture* graph_capture_of(Device& device) {
  auto* const capture = dynamic_cast<GraphCapture*>(&device);
  return capture && capture->captures_graphs() ? capture : nullptr;
}

/// Captures the work that `enqueue` enqueues on `stream`.
template <class Enqueue>
std::unique_ptr<DeviceGraph> capture_graph(GraphCapture& capture, Stream& stream,
                                           const Enqueue& enqueue) {
  capture.begin_graph_capture(stream);
  try {
    enqueue();
  } catch (...) {
    capture.abort_graph_capture(stream);
    throw;
  }
  return capture.end_graph_capture(stream);
}

}  // namespace muonrt
