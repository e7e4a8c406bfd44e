#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>

#include "backend/device.hpp"

namespace muonrt::host {

/// A closure in a fixed block of memory: enqueuing work allocates nothing.
class Task {
 public:
  static constexpr size_t kCapacity = 256;

  Task() = default;
  template <class F>
  requires(!std::is_same_v<std::decay_t<F>, Task>) explicit Task(F f) {  // NOLINT
    static_assert(sizeof(F) <= kCapacity && std::is_trivially_copyable_v<F>,
                  "a task captures plain values that fit its block");
    new (storage_) F(std::move(f));
    call_ = [](void* self) { (*static_cast<F*>(self))(); };
  }
  void operator()() { call_(storage_); }

 private:
  alignas(std::max_align_t) unsigned char storage_[kCapacity];
  void (*call_)(void*) = nullptr;
};

/// The host's streams: work is a Task, run in order by the stream's own thread (or by the thread
/// that synchronizes, for StreamKind::kCommOnCaller), always with the default floating-point
/// environment. What a task throws is latched in the device; the stream then skips its later tasks
/// until Device::clear_error.
/// Lifetime: destroying a stream drops what has not begun (the device reports ABORTED, and work
/// that waits for what was dropped is skipped too), waits for the task that runs, and never hangs
/// on a wait for another stream. A device outlives its streams and events.
class HostStream : public Stream {
 public:
  /// Threads: any, but for the streams' own. Allocates only if more work is pending than ever
  /// before; where there is no memory for that, waits until some of it is done.
  virtual void enqueue(Task task) = 0;
};

/// `stream` as one of the host's. Errors: INTERNAL if it belongs to another kind of device.
HostStream& host_stream(Stream& stream);

}  // namespace muonrt::host
