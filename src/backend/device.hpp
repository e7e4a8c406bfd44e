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
  kComm,          // exchanges and reductions; high priority where the device has priorities
  kCommOnCaller,  // the same, executed by the thread that synchronizes (host: transports that must
                  // be driven by the caller's thread)
};

/// What memory of a device is aligned to, and its parts are; bytes.
constexpr int64_t kMemoryAlignment = 256;
/// Bytes of `count` elements that others follow. Errors: INVALID_ARGUMENT if they are no size.
inline int64_t padded_bytes(int64_t count, int64_t element_bytes) {
  return round_up(checked_mul(count, element_bytes), kMemoryAlignment);
}

/// Memory, streams and events of one device as one rank sees it. Implemented by src/host and cuda.
/// Errors of enqueued work are latched: later work of that stream is skipped, its events complete,
/// and `error` tells the first one. Threads: one optimizer, one device, one enqueuing thread.
class Device {
 public:
  virtual ~Device() = default;

  /// Kind, instruction set, versions of the product libraries: what must be equal for equal bits.
  virtual std::string describe() const = 0;

  /// @return  memory aligned to kMemoryAlignment, or null for 0 bytes. Errors: OUT_OF_MEMORY.
  virtual void* allocate(int64_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  /// @return  memory that host and device reach under one address, else as `allocate`. The host
  /// sees what a stream wrote there once an event recorded after it is synchronized. Slow for the
  /// device: for tables and results. Given back by `release`.
  virtual void* allocate_shared(int64_t bytes) { return allocate(bytes); }
  /// Whether the host reaches what `allocate` gives.
  virtual bool host_reaches_memory() const { return true; }
  /// Whether the device reaches a caller's buffer.
  virtual bool reaches(const void*) const { return true; }
  virtual int64_t allocations() const = 0;  // calls of `allocate` so far
  virtual int64_t allocated_bytes() const = 0;
  /// Streams, events and blocks of queues made so far; constant in steady state.
  virtual int64_t objects() const = 0;

  virtual std::unique_ptr<Stream> create_stream(StreamKind kind) = 0;
  virtual std::unique_ptr<Event> create_event() = 0;

  /// The event completes when all work enqueued on `stream` so far has.
  virtual void record(Event& event, Stream& stream) = 0;
  /// Work enqueued on `stream` from now on starts after the last recording of `event`.
  virtual void wait(Stream& stream, const Event& event) = 0;
  /// Work enqueued on `stream` from now on starts after what the caller has enqueued so far on a
  /// stream of its own (CUDA: a cudaStream_t; null is the default stream, with all that it waits
  /// for). Errors, which begin with `what` this is for: NOT_SUPPORTED while that stream, or one
  /// that it waits for, is being captured.
  virtual void wait_caller_stream(Stream&, void*, const char* /*what*/) {}
  /// Blocks until what the last `join` waits for has ended. Errors: TIMEOUT after the deadline.
  virtual void synchronize_caller_stream(Deadline) {}
  /// Runs `function(argument, native)` in the order of the stream: on the host when the stream gets
  /// there, with a null `native`; on CUDA at once, and it enqueues its work on `native`, the
  /// cudaStream_t. *failed (device memory) becomes 1 where it returns anything but 0.
  virtual void call(Stream& stream, int (*function)(void* argument, void* native), void* argument,
                    int64_t* failed) = 0;
  /// Writes the device's clock, in nanoseconds, when the stream gets there. `where` is shared
  /// memory.
  virtual void timestamp(Stream& stream, int64_t* where) = 0;
  /// Blocks the calling thread. Errors: TIMEOUT after the deadline.
  virtual void synchronize(const Event& event, Deadline deadline) = 0;

  /// First error of enqueued work, if any.
  virtual std::optional<Error> error() const = 0;
  /// Forgets it; only while no work is pending.
  virtual void clear_error() = 0;

  virtual Ops& ops() = 0;
  /// Whether work that is met for the first time makes what it needs there (kernels, tables,
  /// algorithms), which may hold up other ranks of the process, and wait for exchanges under way:
  /// then a step is rehearsed before the ranks meet in one.
  virtual bool needs_warm_up() const { return false; }

  /// A range of the enqueuing thread's time as profilers show it: `name`, or `name number` where
  /// that is not negative. Ranges nest.
  virtual void begin_range(const char*, int64_t) {}
  virtual void end_range() noexcept {}
};

/// begin_range and end_range as a scope.
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

/// Owner of device memory.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Device& device, int64_t bytes)
      : device_(&device), data_(device.allocate(bytes)), bytes_(bytes) {}
  /// Of allocate_shared's memory.
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
