// The functions of the runtime that are not in streams.cpp: devices, memory, kernels, and copies.

#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "block.hpp"
#include "control.hpp"
#include "cuda/kernels/ptx_clock.cuh"
#include "machine.hpp"
#include "ptx/kernels.hpp"

namespace emulator {

thread_local int current_device = 0;
thread_local bool in_foreign_context = false;

Machine& machine() {
  static Machine* const instance = new Machine();
  return *instance;
}

namespace {

thread_local int failing_allocation = 0;

constexpr size_t kSharedUnasked = 48 * 1024;  // bytes that a block may use by default

void lock_machine() {
  machine().mutex.lock();
  ++machine().locks;
}
void unlock_machine() {
  // Memory becomes inaccessible only when the last lock is released, because changing the
  // protection is slow.
  if (--machine().locks == 0) set_reach(0);
  machine().mutex.unlock();
}

/// Begins a launch on a device. Returns false if a test has made this launch fail.
bool begin_kernel(int device) {
  set_reach(1u << device);
  if (std::exchange(machine().fail_next, false)) machine().lost = true;
  return !machine().lost;
}

unsigned bit_of(const MemoryBlock& block) { return block.host ? 0u : 1u << block.device; }

cudaError_t enqueue(Stream& stream, std::function<void()> work) {
  if (machine().lost) return result(cudaErrorLaunchFailure);
  if (const cudaError_t error = order(stream)) return result(error);
  append(stream, [work = std::move(work)] {
    const unsigned before = reach();
    if (!machine().lost) work();
    if (before != 0) set_reach(before);  // restores the access that the calling work had
    return true;
  });
  return cudaSuccess;
}

}  // namespace

Lock::Lock() { lock_machine(); }
Lock::~Lock() { unlock_machine(); }
MachineLock::MachineLock() { lock_machine(); }
MachineLock::~MachineLock() { unlock_machine(); }

cudaError_t result(cudaError_t error) {
  if (error != cudaSuccess) machine().last = error;
  return error;
}

void load_kernel(const void* kernel) {
  const Lock lock;
  touch();
  if (machine().loaded.insert({kernel, current_device}).second) ++machine().slow_calls;
}

void grant_shared_bytes(const void* kernel, int bytes) {
  const Lock lock;
  load_kernel(kernel);
  machine().shared_bytes[{kernel, current_device}] = static_cast<size_t>(bytes);
}

cudaError_t enqueue_kernel(const cudaLaunchConfig_t& config, const void* kernel,
                           const Passed& passed, std::function<void()> thread) {
  const dim3 grid = config.gridDim, threads = config.blockDim;
  size_t shared_bytes = config.dynamicSmemBytes;
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
  const Lock lock;
  Stream& stream = of(config.stream);
  if (stream.device != current_device) return result(cudaErrorInvalidResourceHandle);
  const auto granted = machine().shared_bytes.find({kernel, current_device});
  if (shared_bytes > kSharedUnasked &&
      (granted == machine().shared_bytes.end() || shared_bytes > granted->second))
    return result(cudaErrorInvalidValue);
  load_kernel(kernel);
  auto& [kernels, blocks, begun_early, clustered] = machine().launched;
  ++kernels, blocks += int64_t{grid.x} * grid.y * grid.z, begun_early += early;
  clustered += side_by_side > 1;
  if (ptx::runs()) thread = ptx::prepare(kernel, passed, threads.x, shared_bytes);
  return enqueue(stream, [=, device = stream.device, thread = std::move(thread)] {
    if (!begin_kernel(device)) return;
    ptx::begin_launch();
    for (unsigned z = 0; z < grid.z; ++z)
      for (unsigned y = 0; y < grid.y; ++y)
        for (unsigned x = 0; x < grid.x; x += side_by_side) {
          Cluster cluster{{}, grid, threads, shared_bytes, early};
          for (unsigned i = 0; i < side_by_side; ++i) cluster.blocks.push_back({x + i, y, z});
          run_cluster(thread, cluster);
        }
  });
}

int library_device() {
  const Lock lock;
  touch();
  return current_device;
}
bool library_reaches(const void* memory) {
  const Lock lock;
  const auto found = find_memory(memory);
  return found && (found->host || found->device == current_device);
}
void library_takes(int64_t ns) { muonrt::cuda::emulated_clock() += ns; }
bool library_may_load() {
  const Lock lock;
  ++machine().slow_calls;
  return may_wait();
}
cudaError_t enqueue_library_kernel(cudaStream_t stream, std::function<void()> work) {
  const Lock lock;
  Stream& s = of(stream);
  if (s.device != current_device) return result(cudaErrorInvalidResourceHandle);
  ++machine().launched.kernels;
  return enqueue(s, [device = s.device, work = std::move(work)] {
    if (begin_kernel(device)) work();
  });
}

void fail_allocation(int number) { failing_allocation = number; }
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
unsigned contexts() {
  const Lock lock;
  return machine().contexts;
}
void forget_contexts() {
  const Lock lock;
  machine().contexts = 0;
}
void enter_foreign_context(bool enters) { in_foreign_context = enters; }
int64_t foreign_calls() {
  const Lock lock;
  return machine().foreign_calls;
}
void touch() {
  machine().contexts |= 1u << current_device;
  machine().foreign_calls += in_foreign_context;
}
Launched launched() {
  const Lock lock;
  return machine().launched;
}
void pretend_sms(int count) {
  const Lock lock;
  machine().sms = count;
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

cudaError_t cudaRuntimeGetVersion(int* version) { return *version = 13000, cudaSuccess; }

cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kDevices;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return result(cudaErrorInvalidDevice);
  const Lock lock;
  current_device = device;
  in_foreign_context = false;
  touch();
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  const Lock lock;
  *properties = {"emulated GPU", 9, 0, static_cast<int>(machine().sms), 512, size_t{80} << 30};
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr which, int) {
  *value = which == cudaDevAttrComputeCapabilityMajor ? 9 : 0;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* bus_id, int bytes, int device) {
  std::snprintf(bus_id, static_cast<size_t>(bytes), "0000:%02X:00.0", 10 + device);
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  const Lock lock;
  touch();
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

namespace {

cudaError_t allocate(void** memory, size_t bytes, bool host) {
  const Lock lock;
  if (!may_wait()) return result(cudaErrorStreamCaptureUnsupported);
  ++machine().slow_calls;
  const bool fails = failing_allocation > 0 && --failing_allocation == 0;
  *memory = fails ? nullptr : allocate_memory(bytes, current_device, host);
  return *memory ? cudaSuccess : result(cudaErrorMemoryAllocation);
}

}  // namespace

cudaError_t cudaMalloc(void** memory, size_t bytes) { return allocate(memory, bytes, false); }
cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  return allocate(memory, bytes, true);
}
// A real cudaFree waits for all work of the device, because this work may still use the memory. In
// the emulator, the ranks are threads that share a GPU, so each thread waits only for the work that
// it has enqueued.
cudaError_t cudaFree(void* memory) {
  while (true) {
    const Lock lock;
    if (!may_wait()) return result(cudaErrorStreamCaptureUnsupported);
    ++machine().slow_calls;
    if (drain(std::this_thread::get_id()))
      return free_memory(memory) ? cudaSuccess : result(cudaErrorInvalidValue);
  }
}
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  const Lock lock;
  const auto shared = share_memory(memory);
  if (!shared) return result(cudaErrorInvalidValue);
  std::memcpy(handle->reserved, &*shared, sizeof *shared);
  return cudaSuccess;
}
cudaError_t cudaIpcOpenMemHandle(void** memory, cudaIpcMemHandle_t handle, unsigned) {
  const Lock lock;
  SharedMemory shared;
  std::memcpy(&shared, handle.reserved, sizeof shared);
  // As on a GPU, a process cannot open its own memory.
  *memory = shared.process == getpid() ? nullptr : open_memory(shared);
  return *memory ? cudaSuccess : result(cudaErrorInvalidValue);
}
cudaError_t cudaIpcCloseMemHandle(void* memory) { return cudaFree(memory); }

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* memory) {
  const Lock lock;
  touch();
  const auto found = find_memory(memory);
  *attributes = {cudaMemoryTypeUnregistered, -2, nullptr, const_cast<void*>(memory)};
  if (!found) return cudaSuccess;
  attributes->type = found->host ? cudaMemoryTypeHost : cudaMemoryTypeDevice;
  attributes->device = found->device;
  attributes->devicePointer = const_cast<void*>(memory);
  return cudaSuccess;
}

// Copies and fills may access the memory of any device. For a fill, the device of the stream must
// be current.
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  const Lock lock;
  const auto source = find_memory(from), target = find_memory(to);
  const bool both_host = source && source->host && target && target->host;
  const unsigned devices = (source ? bit_of(*source) : 0u) | (target ? bit_of(*target) : 0u);
  if (source && target && !both_host) {
    return enqueue(of(stream), [=] {
      set_reach(reach() | devices);
      std::memcpy(to, from, bytes);
    });
  }
  ++machine().slow_calls;
  if (!may_wait()) return result(cudaErrorStreamCaptureUnsupported);
  // When a copy from pageable memory returns, the runtime has already read the source.
  const auto* first = static_cast<const unsigned char*>(from);
  return enqueue(of(stream), [=, read = std::vector<unsigned char>(first, first + bytes)] {
    set_reach(reach() | devices);
    std::memcpy(to, read.data(), read.size());
  });
}
cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device,
                                size_t bytes, cudaStream_t stream) {
  {
    const Lock lock;
    const auto source = find_memory(from), target = find_memory(to);
    if (!source || source->host || source->device != from_device || !target || target->host ||
        target->device != to_device)
      return result(cudaErrorInvalidValue);
  }
  return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream);
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  const Lock lock;
  if (of(stream).device != current_device) return result(cudaErrorInvalidResourceHandle);
  const auto target = find_memory(to);
  return enqueue(of(stream), [=, devices = target ? bit_of(*target) : 0u] {
    set_reach(reach() | devices);
    std::memset(to, value, bytes);
  });
}
