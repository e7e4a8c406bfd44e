#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/checked.hpp"
#include "base/deadline.hpp"
#include "base/error.hpp"

namespace muonrt {

class Ops;

/// A queue of work that runs in first-in first-out order. Threads: only one thread may enqueue.
class Stream {
 public:
  virtual ~Stream() = default;
};

/// Marks a position in a stream. An event may be recorded again. Waiting for an event that was
/// never recorded returns immediately.
class Event {
 public:
  virtual ~Event() = default;
};

enum class StreamKind {
  kCompute,  // passes over local data, and products
  kComm,     // exchanges and reductions; has high priority if the device supports priorities
  /// Like kComm, but the work runs on the thread that synchronizes, for transports that only the
  /// caller's thread may use. Only on the host.
  kCommOnCaller,
};

/// The alignment, in bytes, of device memory and of the blocks that it is divided into.
constexpr int64_t kMemoryAlignment = 256;
/// Returns the size of `count` elements in bytes, rounded up to kMemoryAlignment.
/// Errors: INVALID_ARGUMENT if the size is negative or overflows.
inline int64_t padded_bytes(int64_t count, int64_t element_bytes) {
  return round_up(checked_mul(count, element_bytes), kMemoryAlignment);
}

/// The memory, streams and events of one device, for one rank. src/host and cuda implement this
/// interface. A stream keeps the first error of its enqueued work, and error() returns this error.
/// After an error, the stream skips all later work, and the events of the skipped work complete.
/// Threads: each optimizer has its own device, and only one thread may enqueue.
class Device {
 public:
  virtual ~Device() = default;

  /// Returns the kind of device, its instruction set, and the versions of its libraries for
  /// products. Devices with equal descriptions compute bitwise identical results.
  virtual std::string describe() const = 0;

  /// Allocates memory that is aligned to kMemoryAlignment. Returns null for 0 bytes. Errors:
  /// OUT_OF_MEMORY.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  /// Allocates memory that host and device access at the same address. To read data that a stream
  /// has written, the host must first synchronize an event that was recorded after the write.
  /// Access from the device is slow, so use this memory only for tables and results. Free it with
  /// release().
  virtual void* allocate_shared(int64_t bytes) { return allocate(bytes); }
  /// Returns whether the host can access memory that allocate() returns.
  virtual bool host_reaches_memory() const { return true; }
  /// Returns whether the device can access a buffer that belongs to the caller.
  virtual bool reaches(const void*) const { return true; }
  virtual int64_t allocations() const = 0;  // number of calls to allocate() so far
  virtual int64_t allocated_bytes() const = 0;
  /// Returns the number of streams, events and queue blocks created so far. This number does not
  /// grow after the first steps.
  virtual int64_t objects() const = 0;

  virtual std::unique_ptr<Stream> create_stream(StreamKind kind) = 0;
  virtual std::unique_ptr<Event> create_event() = 0;

  /// Records `event` on `stream`. The event completes when all work enqueued on `stream` so far has
  /// completed.
  virtual void record(Event& event, Stream& stream) = 0;
  /// Makes work that is enqueued on `stream` after this call wait for the most recent recording of
  /// `event`.
  virtual void wait(Stream& stream, const Event& event) = 0;
  /// Makes work that is enqueued on `stream` after this call wait for the work that is now on the
  /// caller's stream. On CUDA, the caller's stream is a cudaStream_t. Null stands for the default
  /// stream and all streams that synchronize with it.
  /// Errors, with a message that begins with `what`: NOT_SUPPORTED if the caller's stream, or a
  /// stream that synchronizes with it, is being captured.
  virtual void wait_caller_stream(Stream&, void*, const char* /*what*/) {}
  /// Blocks until the work that the last wait_caller_stream() waits for is complete. Errors:
  /// TIMEOUT if it is not complete at the deadline.
  virtual void synchronize_caller_stream(Deadline) {}
  /// Runs `function(argument, native)` in stream order. On the host, the function runs when the
  /// stream reaches it, and `native` is null. On CUDA, the function runs immediately and must
  /// enqueue its work on the cudaStream_t `native`. If the function returns a value other than 0,
  /// *failed (in device memory) becomes 1.
  virtual void call(Stream& stream, int (*function)(void* argument, void* native), void* argument,
                    int64_t* failed) = 0;
  /// Writes the time of the device's clock, in nanoseconds, to `where` (shared memory) when the
  /// stream reaches this operation.
  virtual void timestamp(Stream& stream, int64_t* where) = 0;
  /// Blocks the calling thread until the event completes. Errors: TIMEOUT if it has not completed
  /// at the deadline.
  virtual void synchronize(const Event& event, Deadline deadline) = 0;

  /// Returns the first error of enqueued work, or nullopt if there is none.
  virtual std::optional<Error> error() const = 0;
  /// Clears the error that error() returns. Call this function only if no work is pending.
  virtual void clear_error() = 0;

  virtual Ops& ops() = 0;
  /// Returns whether the first run of an op creates kernels, tables or algorithms. Creating them
  /// may block other ranks of the process, and may wait for exchanges in flight. If so, the
  /// optimizer runs a warm-up step before the first real step.
  virtual bool needs_warm_up() const { return false; }

  /// Begins a profiler range on the enqueuing thread. The name of the range is `name`, followed by
  /// `number` if `number` is not negative. Ranges may be nested.
  virtual void begin_range(const char*, int64_t) {}
  virtual void end_range() noexcept {}

  /// On CUDA, creates a stream whose work runs on the caller's stream; follow() sets that stream.
  /// On the host, creates an ordinary stream of kind kCompute.
  virtual std::unique_ptr<Stream> create_caller_stream() {
    return create_stream(StreamKind::kCompute);
  }
  /// Enqueues all later work of `stream` on the caller's stream. `stream` must come from
  /// create_caller_stream(). Returns true if the caller's stream is being captured; the work must
  /// then neither wait nor allocate.
  /// Errors, with a message that begins with `what`: NOT_SUPPORTED if the caller's stream is the
  /// default stream and a stream that synchronizes with it is being captured.
  virtual bool follow(Stream& /*stream*/, void* /*callers_stream*/, const char* /*what*/) {
    return false;
  }

  /// Returns the number of kernels that the calling thread has launched so far. Callers use it to
  /// limit how many kernels are queued, because the queue of a GPU has a limited size.
  virtual int64_t launches() const { return 0; }
};

/// Calls begin_range() in its constructor and end_range() in its destructor.
class ProfilerRange {
 public:
  ProfilerRange(Device& device, const char* name, int64_t number = -1) : device_(device) {
    device_.begin_range(name, number);
  }
  ~ProfilerRange() { device_.end_range(); }
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

 private:
  Device& device_;
};

/// A block of device memory, which the destructor frees.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, int64_t bytes)
      : device_(&device), data_(device.allocate(bytes)), bytes_(bytes) {}
  /// Allocates with Device::allocate_shared().
  static Buffer shared(Device& device, int64_t bytes) {
    Buffer out;
    out.data_ = device.allocate_shared(bytes);
    out.device_ = &device;
    out.bytes_ = bytes;
    return out;
  }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (data_) device_->release(data_);
  }

  void* data() const { return data_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  int64_t bytes() const { return bytes_; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
  }
  Device* device_ = nullptr;
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace muonrt
