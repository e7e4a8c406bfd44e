#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

#include "backend/cuda_device.hpp"
#include "backend/device.hpp"
#include "backend/graph_capture.hpp"
#include "cuda/device/memory_source.hpp"
#include "cuda/device/stream_list.hpp"
#include "cuda/ops/cuda_ops.hpp"

namespace muonrt::cuda {

/// The kind of memory that an address belongs to, from the point of view of one device.
enum class MemoryKind {
  kDevice,     // memory of this device
  kShared,     // host memory that the device can access: pinned or managed
  kHost,       // other host memory; accessible only if the device can access all host memory
  kElsewhere,  // memory of another device, or no memory
};
inline bool is_reached(MemoryKind kind) {
  return kind == MemoryKind::kDevice || kind == MemoryKind::kShared;
}

class CudaStream final : public Stream {
 public:
  /// @param all  the list that contains this stream until the stream is destroyed.
  CudaStream(int device, int priority, StreamList& all);
  /// Wraps a caller's stream, which is set with `follow`. Before the first call to `follow`, the
  /// object wraps the default stream.
  explicit CudaStream(int device) : device_(device) {}
  void follow(cudaStream_t callers) { handle_ = callers; }
  /// Blocks until the stream's work is complete, because the memory that the work uses may be freed
  /// afterwards.
  ~CudaStream() override;
  cudaStream_t handle() const { return handle_; }

 private:
  int device_;
  StreamList* all_ = nullptr;  // null if the stream belongs to the caller
  cudaStream_t handle_ = nullptr;
};

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(int device);
  ~CudaEvent() override;
  cudaEvent_t handle() const { return handle_; }

 private:
  int device_;
  cudaEvent_t handle_ = nullptr;
};

/// Errors: NOT_SUPPORTED if there is no GPU; DEVICE if no GPU has this index, or if the GPU is too
/// old.
void require_device(int index);
/// Returns a DEVICE error for `result`, the error that an event of the device returned because
/// earlier work failed.
Error failed_work(int index, cudaError_t result);

/// Errors: INTERNAL if the stream belongs to another kind of device.
cudaStream_t handle_of(Stream& stream);
cudaEvent_t handle_of(const Event& event);

/// One GPU as seen by one rank. Its streams do not wait for the default stream. Streams of kind
/// kComm have the highest priority, and streams of kind kCompute have the lowest. If a CUDA call
/// fails, the method throws the error. If enqueued work fails, `synchronize` stores the error, and
/// `error` then returns it. After an error inside a kernel, the process's CUDA context is lost, and
/// every later call reports the error again.
class CudaDevice final : public Device, public GraphCapture {
 public:
  /// Errors: NOT_SUPPORTED if there is no GPU or no library for matrix products; DEVICE if no GPU
  /// has this index, or if the GPU is too old.
  CudaDevice(int index, const CudaSettings& settings);
  ~CudaDevice() override;

  int index() const { return index_; }
  int sms() const { return sms_; }
  /// Returns the number of thread blocks of kThreads threads that can run at the same time.
  int resident_blocks() const { return resident_blocks_; }
  MemoryKind kind_of(const void* memory) const;
  const StreamList& streams() const { return streams_; }

  std::string describe() const override;
  void* allocate(int64_t bytes) override;
  void* allocate_shared(int64_t bytes) override;
  void release(void* memory) noexcept override;
  int64_t allocations() const override { return allocations_; }
  int64_t allocated_bytes() const override { return allocated_bytes_; }
  int64_t objects() const override { return objects_; }
  bool host_reaches_memory() const override { return false; }
  bool reaches(const void* memory) const override;

  std::unique_ptr<Stream> create_stream(StreamKind kind) override;
  std::unique_ptr<Event> create_event() override;
  void record(Event& event, Stream& stream) override;
  void wait(Stream& stream, const Event& event) override;
  void wait_caller_stream(Stream& stream, void* callers_stream, const char* what) override;
  void synchronize_caller_stream(Deadline deadline) override;
  int64_t launches() const override;
  std::unique_ptr<Stream> create_caller_stream() override;
  bool follow(Stream& stream, void* callers_stream, const char* what) override;
  void call(Stream& stream, int (*function)(void*, void*), void* argument,
            int64_t* failed) override;
  void timestamp(Stream& stream, int64_t* where) override;
  /// Polls the event. The thread first spins briefly, and then sleeps between queries.
  void synchronize(const Event& event, Deadline deadline) override;

  std::optional<Error> error() const override;
  void clear_error() override;
  Ops& ops() override { return *ops_; }
  bool needs_warm_up() const override { return true; }

  bool captures_graphs() const override { return settings_.graphs; }
  void begin_graph_capture(Stream& stream) override;
  std::unique_ptr<DeviceGraph> end_graph_capture(Stream& stream) override;
  void abort_graph_capture(Stream& stream) noexcept override;
  void launch_graph(Stream& stream, const DeviceGraph& graph) override;

  void begin_range(const char* name, int64_t number) override;
  void end_range() noexcept override;

 private:
  struct Block {
    int64_t bytes;
    bool shared;
  };
  bool ends(const CudaEvent& event, Deadline deadline);
  void* allocate_block(int64_t bytes, bool shared);
  void* raw_allocate(int64_t bytes, bool shared);
  void latch(cudaError_t result);

  const int index_;
  // `graphs` determines whether the device captures graphs (backend/graph_capture.hpp).
  CudaSettings settings_;
  std::string name_;
  int sms_ = 0;
  int resident_blocks_ = 0;
  int lowest_priority_ = 0, highest_priority_ = 0;
  bool reaches_all_host_memory_ = false;
  mutable std::mutex mutex_;  // guards blocks_ and error_
  std::map<const char*, Block> blocks_;
  std::optional<Error> error_;
  std::atomic<bool> is_capturing_{false};
  std::atomic<int64_t> allocations_{0}, allocated_bytes_{0}, objects_{0};
  StreamList streams_;
  std::unique_ptr<MemorySource> memory_;
  std::unique_ptr<CudaEvent> joined_;
  // the last member, because its destructor frees memory of the device
  std::unique_ptr<CudaOps> ops_;
};

}  // namespace muonrt::cuda
