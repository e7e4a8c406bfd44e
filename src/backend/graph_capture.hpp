#pragma once

#include <memory>

#include "backend/device.hpp"

namespace muonrt {

/// Work of a stream that was captured and can be launched again as a whole.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

/// A device that can capture graphs (CUDA). A graph stores pointers to the memory that its work
/// uses, so this memory must not move. Threads: the same as for Device.
class GraphCapture {
 public:
  virtual ~GraphCapture() = default;
  /// Returns whether graphs are enabled for this device.
  virtual bool captures_graphs() const = 0;
  /// Begins a capture. Work that is enqueued on `stream` is then captured instead of run. The work
  /// must not wait, allocate memory, or use another stream.
  virtual void begin_graph_capture(Stream& stream) = 0;
  virtual std::unique_ptr<DeviceGraph> end_graph_capture(Stream& stream) = 0;
  /// Ends the capture after an error and discards the captured work.
  virtual void abort_graph_capture(Stream& stream) noexcept = 0;
  virtual void launch_graph(Stream& stream, const DeviceGraph& graph) = 0;
};

/// Returns the device as a GraphCapture, or null if it does not capture graphs.
inline GraphCapture* graph_capture_of(Device& device) {
  auto* const capture = dynamic_cast<GraphCapture*>(&device);
  return capture && capture->captures_graphs() ? capture : nullptr;
}

/// Calls `enqueue`, and returns a graph of the work that this call enqueues on `stream`.
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
