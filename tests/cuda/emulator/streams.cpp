// Streams and events of the emulated GPUs. Work runs only when a thread waits, and then only the
// work that this wait requires. This makes a missing dependency visible, because work that no event
// orders before the wait has not run yet.

#include "control.hpp"
#include "machine.hpp"

namespace emulator {

namespace {

thread_local cudaStreamCaptureMode interaction = cudaStreamCaptureModeGlobal;

}  // namespace

Stream& of(cudaStream_t stream) {
  touch();
  if (!stream || stream == cudaStreamLegacy) return machine().default_streams[current_device];
  if (stream != cudaStreamPerThread) return *stream;
  auto& mine = machine().of_threads[{std::this_thread::get_id(), current_device}];
  if (!mine) {
    mine = std::make_unique<Stream>();
    mine->device = current_device;
  }
  return *mine;
}

bool is_alive(const Stream* stream) {
  bool alive = false;
  for_each_stream([&](const Stream& s) { alive = alive || &s == stream; });
  return alive;
}

cudaError_t order(Stream& stream) {
  if (!stream.blocking || stream.capture) return cudaSuccess;
  Stream& common = machine().default_streams[stream.device];
  const auto follow = [](Stream& later, Stream& earlier) {
    if (earlier.end() == earlier.ran) return;
    later.queue.push_back([seen = &earlier, position = earlier.end()] {
      return !is_alive(seen) || run_until(*seen, position);
    });
  };
  if (&stream != &common) {
    follow(stream, common);
    return cudaSuccess;
  }
  bool captured = false;
  for_each_stream([&](Stream& s) {
    if (&s == &common || !s.blocking || s.device != common.device) return;
    if (s.capture) {
      captured = true;
      s.capture->valid = false;
    } else {
      follow(common, s);
    }
  });
  return captured ? cudaErrorStreamCaptureImplicit : cudaSuccess;
}

void append(Stream& stream, std::function<bool()> entry) {
  if (stream.capture) {
    stream.capture->work.push_back(std::move(entry));
  } else {
    stream.queue.push_back(std::move(entry));
  }
}

bool may_wait() {
  touch();
  if (interaction == cudaStreamCaptureModeRelaxed) return true;
  bool allowed = true;
  for_each_stream([&](Stream& s) {
    if (!s.capture) return;
    const bool forbids = s.capture->owner == std::this_thread::get_id()
                             ? s.capture->mode != cudaStreamCaptureModeRelaxed
                             : s.capture->mode == cudaStreamCaptureModeGlobal &&
                                   interaction == cudaStreamCaptureModeGlobal;
    if (forbids) allowed = s.capture->valid = false;
  });
  return allowed;
}

int64_t enqueue_operation(cudaStream_t stream, std::function<bool()> attempt) {
  const Lock lock;
  Stream& s = of(stream);
  append(s, [attempt = std::move(attempt)] {
    if (machine().lost) return true;
    set_reach((1u << kDevices) - 1);
    return attempt();
  });
  return s.capture ? 0 : s.end() - 1;
}

bool drain(std::thread::id owner) {
  const Lock lock;
  bool all = true;
  for_each_stream([&](Stream& s) { all = (run_until(s, s.end()) || s.owner != owner) && all; });
  return all;
}

bool reach(cudaStream_t stream, int64_t position) {
  const Lock lock;
  return !is_alive(&of(stream)) || run_until(of(stream), position);
}

void hold(bool held) {
  const Lock lock;
  machine().held = held;
}
int64_t graph_launches() {
  const Lock lock;
  return machine().graph_launches;
}
int64_t pending() {
  const Lock lock;
  int64_t count = 0;
  for_each_stream([&](const Stream& s) { count += static_cast<int64_t>(s.queue.size()); });
  return count;
}

}  // namespace emulator

using namespace emulator;

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
  const Lock lock;
  ++machine().slow_calls;
  touch();
  *stream = new Stream();
  (*stream)->device = current_device;
  (*stream)->blocking = (flags & cudaStreamNonBlocking) == 0;
  machine().streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock;
  touch();
  run_until(*stream, stream->end());  // the work of a destroyed stream still runs
  machine().streams.erase(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  while (true) {
    const Lock lock;
    ++machine().slow_calls;
    if (!may_wait()) return result(cudaErrorStreamCaptureUnsupported);
    if (of(stream).capture) {
      of(stream).capture->valid = false;
      return result(cudaErrorStreamCaptureUnsupported);
    }
    if (const cudaError_t error = order(of(stream))) return result(error);
    if (run_until(of(stream), of(stream).end()))
      return machine().lost ? result(cudaErrorLaunchFailure) : cudaSuccess;
  }
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock;
  Stream& s = of(stream);
  if (s.capture) {  // not emulated
    s.capture->valid = false;
    return result(cudaErrorStreamCaptureUnsupported);
  }
  if (const cudaError_t error = order(s)) return result(error);
  const Event seen = *event;
  s.queue.push_back(
      [seen] { return seen.is_complete() || run_until(*seen.stream, seen.position); });
  return cudaSuccess;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const Lock lock;
  const Stream& asked = of(stream);
  *status = asked.capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  bool implicit = false;
  for_each_stream([&](const Stream& s) {
    implicit = implicit || (s.capture && s.blocking && s.device == asked.device);
  });
  const bool common = &asked == &machine().default_streams[asked.device];
  return common && implicit ? result(cudaErrorStreamCaptureImplicit) : cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  const Lock lock;
  touch();
  std::swap(*mode, interaction);
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const Lock lock;
  Stream& s = of(stream);
  if (s.capture || &s == &machine().default_streams[s.device])
    return result(cudaErrorStreamCaptureUnsupported);
  s.capture = std::make_unique<Graph>();
  s.capture->mode = mode;
  s.capture->owner = std::this_thread::get_id();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock;
  std::unique_ptr<Graph> captured = std::move(of(stream).capture);
  *graph = nullptr;
  if (!captured || !captured->valid) return result(cudaErrorStreamCaptureUnsupported);
  *graph = captured.release();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
  const Lock lock;
  ++machine().slow_calls;
  if (!may_wait()) return result(cudaErrorStreamCaptureUnsupported);
  *ready = new Graph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t*, size_t* count) {
  *count = graph->work.size();
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  const Lock lock;
  if (!may_wait()) return result(cudaErrorStreamCaptureUnsupported);
  return cudaGraphDestroy(graph);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  const Lock lock;
  ++machine().graph_launches;
  Stream& s = of(stream);
  if (const cudaError_t error = order(s)) return result(error);
  for (const auto& work : graph->work) append(s, work);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const Lock lock;
  ++machine().slow_calls;
  touch();
  *event = new Event();
  (*event)->device = current_device;
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock;
  Stream& s = of(stream);
  if (s.device != event->device) return result(cudaErrorInvalidResourceHandle);
  if (s.capture) {  // not emulated
    s.capture->valid = false;
    return result(cudaErrorStreamCaptureUnsupported);
  }
  if (const cudaError_t error = order(s)) return result(error);
  event->stream = &s;
  event->alive = s.life;
  event->position = s.end();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock;
  if (!may_wait()) return result(cudaErrorStreamCaptureUnsupported);
  if (event->is_complete()) {
    return machine().lost ? result(cudaErrorLaunchFailure) : cudaSuccess;
  }
  if (machine().held || !run_until(*event->stream, event->position))
    return result(cudaErrorNotReady);
  return machine().lost ? result(cudaErrorLaunchFailure) : cudaSuccess;
}
