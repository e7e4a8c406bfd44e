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

/// A first-in first-out queue of work. Threads: one thread enqueues.
class Stream {
 public:
  virtual ~Stream() = default;
};

/// A mark in a stream, reusable. Waiting for an event that was never recorded returns at once.
class Event {
 public:
  virtual ~Event() = default;
};

enum class StreamKind {
  kCompute,       // local passes and products
  kComm,          // exchanges and reductions; high priority if the device has priorities
  kCommOnCaller,  // exchanges and reductions that run on the thread that synchronizes, for
                  // transports that only the caller's thread may drive (host only)
};

/// Alignment in bytes of device memory and of the parts into which it is divided.
constexpr int64_t kMemoryAlignment = 256;
/// Returns the bytes of `count` elements, rounded up to kMemoryAlignment.
/// Errors: INVALID_ARGUMENT if the size is negative or overflows.
inline int64_t padded_bytes(int64_t count, int64_t element_bytes) {
  return round_up(checked_mul(count, element_bytes), kMemoryAlignment);
}

/// Memory, streams and events of one device as one rank sees it. Implemented by src/host and cuda.
/// The first error of enqueued work is latched: later work of that stream is skipped, its events
/// complete, and `error` returns the error. Threads: each optimizer has its own device, and one
/// thread enqueues.
class Device {
 public:
  virtual ~Device() = default;

  /// Kind, instruction set and versions of the product libraries. Devices with equal descriptions
  /// compute bitwise identical results.
  virtual std::string describe() const = 0;

  /// Returns memory aligned to kMemoryAlignment, or null for 0 bytes. Errors: OUT_OF_MEMORY.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  /// As `allocate`, but host and device access the memory under the same address. The host can read
  /// what a stream wrote after it has synchronized an event recorded later. The device accesses
  /// this memory slowly, so use it for tables and results. Free it with `release`.
  virtual void* allocate_shared(int64_t bytes) { return allocate(bytes); }
  /// Returns whether the host can access memory from `allocate`.
  virtual bool host_reaches_memory() const { return true; }
  /// Returns whether the device can access a caller's buffer.
  virtual bool reaches(const void*) const { return true; }
  virtual int64_t allocations() const = 0;  // calls of `allocate` so far
  virtual int64_t allocated_bytes() const = 0;
  /// Number of streams, events and queue blocks created so far; constant in steady state.
  virtual int64_t objects() const = 0;

  virtual std::unique_ptr<Stream> create_stream(StreamKind kind) = 0;
  virtual std::unique_ptr<Event> create_event() = 0;

  /// Records `event`: it completes when all work enqueued on `stream` so far has completed.
  virtual void record(Event& event, Stream& stream) = 0;
  /// Makes work that is enqueued on `stream` from now on wait for the last recording of `event`.
  virtual void wait(Stream& stream, const Event& event) = 0;
  /// Makes work that is enqueued on `stream` from now on wait for the work that is now on the
  /// caller's stream (CUDA: a cudaStream_t; null is the default stream, including the streams it
  /// waits for). Errors, whose text begins with `what`: NOT_SUPPORTED if the caller's stream, or a
  /// stream that it waits for, is being captured.
  virtual void wait_caller_stream(Stream&, void*, const char* /*what*/) {}
  /// Blocks until the work that the last `wait_caller_stream` waits for has ended. Errors: TIMEOUT
  /// after the deadline.
  virtual void synchronize_caller_stream(Deadline) {}
  /// Runs `function(argument, native)` in stream order. On the host it runs when the stream reaches
  /// it, and `native` is null. On CUDA it runs immediately and must enqueue its work on `native`,
  /// the cudaStream_t. If it returns a value other than 0, *failed (device memory) becomes 1.
  virtual void call(Stream& stream, int (*function)(void* argument, void* native), void* argument,
                    int64_t* failed) = 0;
  /// Writes the device's clock, in nanoseconds, to `where` (shared memory) when the stream reaches
  /// this operation.
  virtual void timestamp(Stream& stream, int64_t* where) = 0;
  /// Blocks the calling thread. Errors: TIMEOUT after the deadline.
  virtual void synchronize(const Event& event, Deadline deadline) = 0;

  /// Returns the first error of enqueued work, if any.
  virtual std::optional<Error> error() const = 0;
  /// Clears this error. Call it only while no work is pending.
  virtual void clear_error() = 0;

  virtual Ops& ops() = 0;
  /// Returns whether the first run of an op creates what it needs (kernels, tables, algorithms).
  /// Creating it may block other ranks of the process and may wait for exchanges in flight, so a
  /// warm-up step runs before the first real one.
  virtual bool needs_warm_up() const { return false; }

  /// Begins a profiler range of the enqueuing thread, called `name`, or `name number` if the number
  /// is not negative. Ranges nest.
  virtual void begin_range(const char*, int64_t) {}
  virtual void end_range() noexcept {}

  /// Creates a stream whose work runs on the caller's stream that `follow` names (CUDA). On the
  /// host it is a stream of kind kCompute.
  virtual std::unique_ptr<Stream> create_caller_stream() {
    return create_stream(StreamKind::kCompute);
  }
  /// Enqueues the work of `stream`, which create_caller_stream() has created, on the caller's
  /// stream from now on. Returns whether that stream is being captured; work must then neither wait
  /// nor allocate. Errors, whose text begins with `what`: NOT_SUPPORTED if it is the default stream
  /// while a stream is being captured for which it would wait.
  virtual bool follow(Stream& /*stream*/, void* /*callers_stream*/, const char* /*what*/) {
    return false;
  }

  /// Returns the number of kernels that the calling thread has launched so far. A GPU queues a
  /// limited number of them.
  virtual int64_t launches() const { return 0; }
};

/// Calls begin_range in its constructor and end_range in its destructor.
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

/// Owns device memory.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, int64_t bytes)
      : device_(&device), data_(device.allocate(bytes)), bytes_(bytes) {}
  /// Allocates with allocate_shared.
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
