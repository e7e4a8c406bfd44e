// Streams and events of the emulated GPU. Nothing runs until somebody waits, and then only what the
// wait needs: work that is not tied to it by an event has not happened yet, so that a missing
// dependency shows.

#include <cstring>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

#include "block.hpp"
#include "control.hpp"
#include "memory.hpp"
#include "stream.hpp"

namespace emulator {

namespace {

struct Machine {
  std::recursive_mutex mutex;
  std::set<Stream*> streams;
  Stream default_stream;
  bool held = false, capturing = false, fail_next = false, lost = false;
  cudaError_t last = cudaSuccess;
  int64_t slow_calls = 0, graph_launches = 0, sms = 2;
  Launched launched;
  int locks = 0;  // that the owner of the mutex holds
  // Opened by the first work under a lock, for all that runs under it: to open and close takes
  // long.
  std::optional<DeviceMemoryInReach> in_reach;
};

Machine& machine() {
  static Machine* const instance = new Machine();
  return *instance;
}

thread_local int current_device = 0;

void lock_machine() {
  machine().mutex.lock();
  ++machine().locks;
}
void unlock_machine() {
  if (--machine().locks == 0) machine().in_reach.reset();
  machine().mutex.unlock();
}

struct Lock {
  Lock() { lock_machine(); }
  ~Lock() { unlock_machine(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
};

/// Until the last lock goes.
void reach_device_memory() {
  if (!machine().in_reach) machine().in_reach.emplace();
}

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) machine().last = error;
  return error;
}

Stream& of(cudaStream_t stream) { return stream ? *stream : machine().default_stream; }

bool is_alive(Stream* stream) {
  return stream == &machine().default_stream || machine().streams.count(stream) > 0;
}

/// Runs what can be run; true if that was all.
bool run_all() {
  bool all = true;
  for (Stream* s : machine().streams) all = run_until(*s, s->end()) && all;
  return run_until(machine().default_stream, machine().default_stream.end()) && all;
}

cudaError_t enqueue(cudaStream_t stream, std::function<void()> work) {
  const Lock lock;
  if (machine().lost) return result(cudaErrorLaunchFailure);
  Stream& s = of(stream);
  const auto entry = [work = std::move(work)] {
    if (machine().lost) return true;
    reach_device_memory();
    work();
    return true;
  };
  if (s.capture) {
    s.capture->work.push_back(entry);
  } else {
    s.queue.push_back(entry);
  }
  return cudaSuccess;
}

thread_local Stream* captured_here = nullptr;  // by the calling thread

/// False, and the capture is spoilt, where the calling thread captures: what waits, allocates or
/// reaches another stream.
bool may_leave_capture() {
  if (!captured_here) return true;
  captured_here->capture->valid = false;
  return false;
}

}  // namespace

MachineLock::MachineLock() { lock_machine(); }
MachineLock::~MachineLock() { unlock_machine(); }

int64_t enqueue_operation(cudaStream_t stream, std::function<bool()> attempt) {
  const Lock lock;
  Stream& s = of(stream);
  s.queue.push_back([attempt = std::move(attempt)] {
    if (machine().lost) return true;
    reach_device_memory();
    return attempt();
  });
  return s.end() - 1;
}

bool reach(cudaStream_t stream, int64_t position) {
  const Lock lock;
  return !is_alive(&of(stream)) || run_until(of(stream), position);
}

cudaError_t enqueue_kernel(const cudaLaunchConfig_t& config, std::function<void()> thread) {
  const dim3 grid = config.gridDim, threads = config.blockDim;
  const size_t shared_bytes = config.dynamicSmemBytes;
  unsigned side_by_side = 1;
  bool early = false;
  for (const cudaLaunchAttribute* a = config.attrs; a < config.attrs + config.numAttrs; ++a) {
    if (a->id == cudaLaunchAttributeClusterDimension) side_by_side = a->val.clusterDim.x;
    if (a->id == cudaLaunchAttributeProgrammaticStreamSerialization)
      early = a->val.programmaticStreamSerializationAllowed != 0;
  }
  const bool valid = grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x < (1u << 31) &&
                     grid.x % side_by_side == 0 && grid.y < 65536 && grid.z < 65536 &&
                     threads.x > 0 && threads.x <= 1024;
  if (!valid) return result(cudaErrorInvalidConfiguration);
  {
    const Lock lock;
    auto& [kernels, blocks, begun_early] = machine().launched;
    ++kernels, blocks += int64_t{grid.x} * grid.y * grid.z, begun_early += early;
  }
  return enqueue(config.stream, [=, thread = std::move(thread)] {
    if (std::exchange(machine().fail_next, false)) {
      machine().lost = true;
      return;
    }
    for (unsigned z = 0; z < grid.z; ++z)
      for (unsigned y = 0; y < grid.y; ++y)
        for (unsigned x = 0; x < grid.x; x += side_by_side) {
          Cluster cluster{{}, grid, threads, shared_bytes, early};
          for (unsigned i = 0; i < side_by_side; ++i) cluster.blocks.push_back({x + i, y, z});
          run_cluster(thread, cluster);
        }
  });
}

void hold(bool held) {
  const Lock lock;
  machine().held = held;
}
void pretend_capture(bool capturing) {
  const Lock lock;
  machine().capturing = capturing;
}
void fail_next_kernel() {
  const Lock lock;
  machine().fail_next = true;
}
void forget_failure() {
  const Lock lock;
  machine().lost = machine().fail_next = false;
  machine().last = cudaSuccess;
}
int64_t slow_calls() {
  const Lock lock;
  return machine().slow_calls;
}
int64_t graph_launches() {
  const Lock lock;
  return machine().graph_launches;
}
Launched launched() {
  const Lock lock;
  return machine().launched;
}
void pretend_sms(int count) {
  const Lock lock;
  machine().sms = count;
}
int64_t pending() {
  const Lock lock;
  int64_t count = static_cast<int64_t>(machine().default_stream.queue.size());
  for (const Stream* s : machine().streams) count += static_cast<int64_t>(s->queue.size());
  return count;
}

}  // namespace emulator

using namespace emulator;

cudaError_t cudaGetLastError() {
  const Lock lock;
  return std::exchange(machine().last, cudaSuccess);
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? "cudaErrorLaunchFailure" : "cudaErrorEmulated";
}
const char* cudaGetErrorString(cudaError_t) { return "an error of the emulated GPU"; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 2;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device > 1) return result(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  const Lock lock;
  *properties = {"emulated GPU", 9, 0, static_cast<int>(machine().sms), 512};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  *value = which == cudaDevAttrComputeCapabilityMajor ? 9 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
  while (true) {
    const Lock lock;
    ++machine().slow_calls;
    if (run_all()) return machine().lost ? result(cudaErrorLaunchFailure) : cudaSuccess;
  }
}

cudaError_t cudaMalloc(void** memory, size_t bytes) {
  const Lock lock;
  if (!may_leave_capture()) return result(cudaErrorStreamCaptureUnsupported);
  ++machine().slow_calls;
  *memory = take_memory(bytes, current_device, false);
  return *memory ? cudaSuccess : result(cudaErrorMemoryAllocation);
}
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  const Lock lock;
  if (!may_leave_capture()) return result(cudaErrorStreamCaptureUnsupported);
  ++machine().slow_calls;
  *memory = take_memory(bytes, current_device, true);
  return *memory ? cudaSuccess : result(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void* memory) {
  const Lock lock;
  ++machine().slow_calls;
  run_all();  // a real one would wait for the rest, too: nobody frees in the midst of an exchange
  return give_memory(memory) ? cudaSuccess : result(cudaErrorInvalidValue);
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  const Lock lock;
  const auto found = find_memory(memory);
  *attributes = {cudaMemoryTypeUnregistered, -2, nullptr, const_cast<void*>(memory)};
  if (!found) return cudaSuccess;
  attributes->type = found->host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  attributes->device = found->device;
  attributes->devicePointer = const_cast<void*>(memory);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  const Lock lock;
  ++machine().slow_calls;
  *stream = new Stream();
  machine().streams.insert(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock;
  run_until(*stream, stream->end());  // a destroyed stream's work still runs
  machine().streams.erase(stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (!may_leave_capture()) return result(cudaErrorStreamCaptureUnsupported);
  while (true) {
    const Lock lock;
    ++machine().slow_calls;
    if (run_until(of(stream), of(stream).end()))
      return machine().lost ? result(cudaErrorLaunchFailure) : cudaSuccess;
  }
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const Lock lock;
  if (!may_leave_capture()) return result(cudaErrorStreamCaptureUnsupported);
  const Event seen = *event;
  if (!seen.stream) return cudaSuccess;
  of(stream).queue.push_back(
      [seen] { return !is_alive(seen.stream) || run_until(*seen.stream, seen.position); });
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  const Lock lock;
  *status = machine().capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  const Lock lock;
  if (captured_here || of(stream).capture) return result(cudaErrorStreamCaptureUnsupported);
  captured_here = &of(stream);
  captured_here->capture = std::make_unique<Graph>();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock;
  std::unique_ptr<Graph> captured = std::move(of(stream).capture);
  captured_here = nullptr;
  *graph = nullptr;
  if (!captured || !captured->valid) return result(cudaErrorStreamCaptureUnsupported);
  *graph = captured.release();
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* ready, cudaGraph_t graph, unsigned long long) {
  const Lock lock;
  ++machine().slow_calls;
  *ready = new Graph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) { return cudaGraphDestroy(graph); }
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  const Lock lock;
  ++machine().graph_launches;
  for (const auto& work : graph->work) of(stream).queue.push_back(work);
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  const Lock lock;
  ++machine().slow_calls;
  *event = new Event();
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const Lock lock;
  if (!may_leave_capture()) return result(cudaErrorStreamCaptureUnsupported);
  *event = {&of(stream), of(stream).end()};
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const Lock lock;
  if (!event->stream || event->stream->ran >= event->position) {
    return machine().lost ? result(cudaErrorLaunchFailure) : cudaSuccess;
  }
  if (machine().held || !run_until(*event->stream, event->position))
    return result(cudaErrorNotReady);
  return machine().lost ? result(cudaErrorLaunchFailure) : cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  const Lock lock;
  const auto source = find_memory(from), target = find_memory(to);
  const bool both_host = source && source->host && target && target->host;
  if (source && target && !both_host) return enqueue(stream, [=] { std::memcpy(to, from, bytes); });
  ++machine().slow_calls;
  // From memory that is not pinned the runtime has read everything when it returns.
  const auto* first = static_cast<const unsigned char*>(from);
  return enqueue(stream, [to, read = std::vector<unsigned char>(first, first + bytes)] {
    std::memcpy(to, read.data(), read.size());
  });
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return enqueue(stream, [=] { std::memset(to, value, bytes); });
}
