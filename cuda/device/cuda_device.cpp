#include "cuda/device/cuda_device.hpp"

#include <chrono>

#include "base/backoff.hpp"
#include "cuda/device/cuda_graph.hpp"
#include "cuda/device/guard.hpp"
#include "cuda/device/launch.hpp"
#include "cuda/device/nvtx_ranges.hpp"

namespace muonrt::cuda {

namespace {

constexpr int kOldest =
    80;  // 10 times the oldest compute capability for which the kernels are compiled

template <class To, class From>
To& cast_or_throw(From& from) {
  auto* to = dynamic_cast<To*>(&from);
  MUONRT_CHECK_INTERNAL(to != nullptr, "stream, event or graph of another device");
  return *to;
}

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  MUONRT_CUDA(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

int capability_of(int device) {
  return attribute(cudaDevAttrComputeCapabilityMajor, device) * 10 +
         attribute(cudaDevAttrComputeCapabilityMinor, device);
}

}  // namespace

void require_device(int index) {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result != cudaSuccess) cudaGetLastError();
  MUONRT_REQUIRE(result == cudaSuccess && count > 0, Status::kNotSupported,
                 "there is no CUDA device (",
                 result == cudaSuccess ? "the driver lists none" : cudaGetErrorString(result),
                 "); use MUONRT_DEVICE_HOST, or a machine with a GPU and its driver");
  MUONRT_REQUIRE(index >= 0 && index < count, Status::kDevice, "device_index is ", index,
                 ", but this process sees ", count, " CUDA devices; use an index below ", count);
  const int capability = capability_of(index);
  MUONRT_REQUIRE(capability >= kOldest, Status::kDevice, "CUDA device ", index,
                 " has compute capability ", capability / 10, ".", capability % 10,
                 ", but this build needs ", kOldest / 10, ".", kOldest % 10,
                 " or later; use another device");
}

Error failed_work(int index, cudaError_t result) {
  return Error(
      Status::kDevice,
      cat("work on CUDA device ", index, " failed: ", cudaGetErrorName(result), ", ",
          cudaGetErrorString(result),
          "; restart the process from a checkpoint, because its CUDA context may be lost"));
}

void StreamList::finish() const {
  const RelaxedCapture relaxed;
  const std::lock_guard lock(mutex_);
  for (const cudaStream_t stream : streams_) MUONRT_CUDA(cudaStreamSynchronize(stream));
}

CudaStream::CudaStream(int device, int priority, StreamList& all) : device_(device), all_(&all) {
  const DeviceGuard guard(device_);
  MUONRT_CUDA(cudaStreamCreateWithPriority(&handle_, cudaStreamNonBlocking, priority));
  all_->add(handle_);
}

CudaStream::~CudaStream() {
  if (!all_) return;
  all_->remove(handle_);
  try {
    const DeviceGuard guard(device_);
    const RelaxedCapture relaxed;
    cudaStreamSynchronize(handle_);
    cudaStreamDestroy(handle_);
  } catch (const Error&) {  // a lost context has no streams
  }
}

CudaEvent::CudaEvent(int device) : device_(device) {
  const DeviceGuard guard(device_);
  MUONRT_CUDA(cudaEventCreateWithFlags(&handle_, cudaEventDisableTiming));
}

CudaEvent::~CudaEvent() {
  try {
    const DeviceGuard guard(device_);
    cudaEventDestroy(handle_);
  } catch (const Error&) {
  }
}

cudaStream_t handle_of(Stream& stream) { return cast_or_throw<CudaStream>(stream).handle(); }
cudaEvent_t handle_of(const Event& event) { return cast_or_throw<const CudaEvent>(event).handle(); }

namespace {

/// Returns muonrt's kernels for architectures on which they are faster for every shape
/// (cuda/MEASUREMENTS.md), and otherwise the vendor's library.
SymmetricProvider default_symmetric(int major, bool naive_products) {
  return major == 9 && !naive_products ? SymmetricProvider::kSm90 : SymmetricProvider::kVendor;
}

}  // namespace

CudaDevice::CudaDevice(int index, const CudaSettings& settings)
    : index_(index), settings_(settings) {
  require_device(index_);
  const DeviceGuard guard(index_);
  cudaDeviceProp properties = {};
  MUONRT_CUDA(cudaGetDeviceProperties(&properties, index_));
  name_ = cat(properties.name, " sm_", properties.major, properties.minor, " ",
              properties.multiProcessorCount, " SMs");
  sms_ = properties.multiProcessorCount;
  if (settings_.symmetric == SymmetricProvider::kDefault)
    settings_.symmetric = default_symmetric(properties.major, settings_.naive_products);
  MUONRT_REQUIRE(settings_.symmetric != SymmetricProvider::kSm90 || properties.major == 9,
                 Status::kNotSupported, "options: symmetric is MUONRT_SYMMETRIC_SM90, but ", name_,
                 " does not have compute capability 9.0; use another value");
  resident_blocks_ =
      properties.multiProcessorCount * (properties.maxThreadsPerMultiProcessor / kThreads);
  reaches_all_host_memory_ = attribute(cudaDevAttrPageableMemoryAccess, index_) != 0;
  MUONRT_CUDA(cudaDeviceGetStreamPriorityRange(&lowest_priority_, &highest_priority_));
  memory_ = std::make_unique<MemorySource>(index_, settings_.allocator, streams_);
  joined_ = std::make_unique<CudaEvent>(index_);
  ops_ =
      std::make_unique<CudaOps>(*this,
                                settings_.naive_products  ? nullptr
                                : settings_.make_products ? settings_.make_products(*this, index_)
                                                          : make_vendor_products(*this, index_),
                                settings_);
  load_guarded_copies();
  load_tallies();
}

CudaDevice::~CudaDevice() = default;

std::string CudaDevice::describe() const {
  return cat("CUDA ", name_, ", ", ops_->product_identity());
}

void* CudaDevice::raw_allocate(int64_t bytes, bool shared) {
  void* memory = nullptr;
  if (shared) {
    MUONRT_CUDA(cudaHostAlloc(&memory, static_cast<size_t>(bytes),
                              cudaHostAllocPortable | cudaHostAllocMapped));
  } else {
    memory = memory_->allocate(bytes);
  }
  MUONRT_CHECK_INTERNAL(reinterpret_cast<uintptr_t>(memory) % kMemoryAlignment == 0,
                        "memory at a multiple of ", kMemoryAlignment);
  return memory;
}

void* CudaDevice::allocate_block(int64_t bytes, bool shared) {
  MUONRT_REQUIRE(bytes >= 0, Status::kInvalidArgument, "allocation of ", bytes, " bytes");
  if (bytes == 0) return nullptr;
  MUONRT_CHECK_INTERNAL(!is_capturing_, "memory allocated during a graph capture");
  const DeviceGuard guard(index_);
  const RelaxedCapture relaxed;
  void* memory = nullptr;
  try {
    memory = raw_allocate(bytes, shared);
  } catch (const Error& error) {
    const bool callers = settings_.allocator.allocate && !shared;
    if (error.status() != Status::kOutOfMemory || callers) throw;
    throw Error(Status::kOutOfMemory,
                cat("CUDA device ", index_, " cannot allocate ", human_bytes(bytes),
                    shared ? " of pinned host memory (" : " (", human_bytes(allocated_bytes_),
                    " are allocated; ", error.message(),
                    "); reduce chunk_bytes or window, or use more ranks"));
  }
  const std::lock_guard lock(mutex_);
  blocks_[static_cast<const char*>(memory)] = {bytes, shared};
  ++allocations_;
  allocated_bytes_ += bytes;
  return memory;
}

void* CudaDevice::allocate(int64_t bytes) { return allocate_block(bytes, false); }
void* CudaDevice::allocate_shared(int64_t bytes) { return allocate_block(bytes, true); }

void CudaDevice::release(void* memory) noexcept {
  if (memory == nullptr) return;
  Block block;
  {
    const std::lock_guard lock(mutex_);
    const auto at = blocks_.find(static_cast<const char*>(memory));
    if (at == blocks_.end()) return;
    block = at->second;
    blocks_.erase(at);
  }
  allocated_bytes_ -= block.bytes;
  try {
    const DeviceGuard guard(index_);
    const RelaxedCapture relaxed;
    if (block.shared) {
      cudaFreeHost(memory);
    } else {
      memory_->release(memory, block.bytes);
    }
  } catch (const Error&) {  // the memory was freed with the context
  }
}

MemoryKind CudaDevice::kind_of(const void* memory) const {
  {
    const std::lock_guard lock(mutex_);
    auto at = blocks_.upper_bound(static_cast<const char*>(memory));
    if (at != blocks_.begin()) {
      --at;
      if (static_cast<const char*>(memory) < at->first + at->second.bytes)
        return at->second.shared ? MemoryKind::kShared : MemoryKind::kDevice;
    }
  }
  cudaPointerAttributes attributes = {};
  const cudaError_t asked = cudaPointerGetAttributes(&attributes, memory);
  if (asked == cudaErrorInvalidValue) {
    cudaGetLastError();
    return MemoryKind::kElsewhere;
  }
  MUONRT_CUDA(asked);  // this may also report an error of earlier work on a lost GPU
  switch (attributes.type) {
    case cudaMemoryTypeDevice:
      return attributes.device == index_ ? MemoryKind::kDevice : MemoryKind::kElsewhere;
    case cudaMemoryTypeHost:
    case cudaMemoryTypeManaged:
      return attributes.devicePointer == memory ? MemoryKind::kShared : MemoryKind::kHost;
    default:
      return MemoryKind::kHost;
  }
}

bool CudaDevice::reaches(const void* memory) const {
  if (memory == nullptr) return true;
  const DeviceGuard guard(index_);
  const MemoryKind kind = kind_of(memory);
  return is_reached(kind) || (kind == MemoryKind::kHost && reaches_all_host_memory_);
}

std::unique_ptr<Stream> CudaDevice::create_stream(StreamKind kind) {
  ++objects_;
  return std::make_unique<CudaStream>(
      index_, kind == StreamKind::kCompute ? lowest_priority_ : highest_priority_, streams_);
}

std::unique_ptr<Event> CudaDevice::create_event() {
  ++objects_;
  return std::make_unique<CudaEvent>(index_);
}

void CudaDevice::record(Event& event, Stream& stream) {
  const DeviceGuard guard(index_);
  MUONRT_CUDA(cudaEventRecord(handle_of(event), handle_of(stream)));
}

void CudaDevice::wait(Stream& stream, const Event& event) {
  const DeviceGuard guard(index_);
  MUONRT_CUDA(cudaStreamWaitEvent(handle_of(stream), handle_of(event), 0));
}

void CudaDevice::wait_caller_stream(Stream& stream, void* callers_stream, const char* what) {
  const DeviceGuard guard(index_);
  const auto theirs = static_cast<cudaStream_t>(callers_stream);
  if (theirs == nullptr || theirs == cudaStreamLegacy) {  // the default stream is never captured
    refuse_captured(theirs, what, "a blocking stream, for which the default stream would wait,",
                    "the step waits for the work on the default stream");
  } else {
    refuse_captured(theirs, what, "the caller's stream",
                    "work that waits for peers cannot be replayed");
  }
  const cudaError_t recorded = cudaEventRecord(joined_->handle(), theirs);
  if (recorded == cudaErrorInvalidResourceHandle) cudaGetLastError();
  MUONRT_REQUIRE(recorded != cudaErrorInvalidResourceHandle, Status::kInvalidArgument, what,
                 ": the caller's stream is not one of CUDA device ", index_,
                 "'s primary context, in which the optimizer runs; pass a stream of that context");
  check(recorded, "cudaEventRecord", __func__, __LINE__);
  MUONRT_CUDA(cudaStreamWaitEvent(handle_of(stream), joined_->handle(), 0));
}

int64_t CudaDevice::launches() const { return launches_of_thread; }

std::unique_ptr<Stream> CudaDevice::create_caller_stream() {
  ++objects_;
  return std::make_unique<CudaStream>(index_);
}

bool CudaDevice::follow(Stream& stream, void* callers_stream, const char* what) {
  const DeviceGuard guard(index_);
  const auto theirs = static_cast<cudaStream_t>(callers_stream);
  if (theirs == nullptr || theirs == cudaStreamLegacy)  // the default stream is never captured
    refuse_captured(theirs, what, "a blocking stream, for which the default stream would wait,",
                    "the work would become part of that graph");
  cast_or_throw<CudaStream>(stream).follow(theirs);
  return is_captured(theirs);
}

void CudaDevice::call(Stream& stream, int (*function)(void*, void*), void* argument,
                      int64_t* failed) {
  const DeviceGuard guard(index_);
  static constexpr int64_t kFailed = 1;
  if (function(argument, handle_of(stream)) != 0) {
    ops_->copy(stream, failed, &kFailed, sizeof kFailed);
  }
}

void CudaDevice::timestamp(Stream& stream, int64_t* where) {
  const DeviceGuard guard(index_);
  MUONRT_CHECK_INTERNAL(is_reached(kind_of(where)), "a timestamp outside shared memory");
  write_clock(where, handle_of(stream));
}

void CudaDevice::synchronize(const Event& event, Deadline deadline) {
  MUONRT_REQUIRE(ends(cast_or_throw<const CudaEvent>(event), deadline), Status::kTimeout,
                 "work on CUDA device ", index_,
                 " did not end before the timeout; check whether all ranks are still running");
}

void CudaDevice::synchronize_caller_stream(Deadline deadline) {
  MUONRT_REQUIRE(ends(*joined_, deadline), Status::kTimeout,
                 "step: the work on the caller's stream, which the step waits for, did not end on "
                 "CUDA device ",
                 index_, " before the timeout; check what blocks that stream");
}

/// Returns whether the event completes before the deadline. If the work before the event has
/// failed, stores the error.
bool CudaDevice::ends(const CudaEvent& event, Deadline deadline) {
  const DeviceGuard guard(index_);
  const RelaxedCapture relaxed;
  using std::chrono::microseconds;
  for (Backoff pauses(microseconds(200), microseconds(50), microseconds(50));; pauses.pause()) {
    const cudaError_t result = cudaEventQuery(event.handle());
    if (result == cudaSuccess) return true;
    cudaGetLastError();
    if (result != cudaErrorNotReady) {
      latch(result);
      return true;
    }
    if (deadline.passed()) return false;
  }
}

void CudaDevice::latch(cudaError_t result) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = failed_work(index_, result);
}

std::optional<Error> CudaDevice::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

void CudaDevice::clear_error() {
  const std::lock_guard lock(mutex_);
  error_.reset();
}

void CudaDevice::begin_graph_capture(Stream& stream) {
  const DeviceGuard guard(index_);
  begin_capture(handle_of(stream));
  is_capturing_ = true;
}

std::unique_ptr<DeviceGraph> CudaDevice::end_graph_capture(Stream& stream) {
  is_capturing_ = false;
  const DeviceGuard guard(index_);
  ++objects_;
  return std::make_unique<CudaGraph>(index_, handle_of(stream));
}

void CudaDevice::abort_graph_capture(Stream& stream) noexcept {
  is_capturing_ = false;
  try {
    const DeviceGuard guard(index_);
    drop_capture(handle_of(stream));
  } catch (const Error&) {  // the original error is reported instead
  }
}

void CudaDevice::launch_graph(Stream& stream, const DeviceGraph& graph) {
  const DeviceGuard guard(index_);
  cast_or_throw<const CudaGraph>(graph).launch(handle_of(stream));
}

void CudaDevice::begin_range(const char* name, int64_t number) { push_range(name, number); }
void CudaDevice::end_range() noexcept { pop_range(); }

}  // namespace muonrt::cuda
