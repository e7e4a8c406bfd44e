#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <type_traits>
#include <utility>

#include "backend/device.hpp"

namespace muonrt::host {

/// A callable of fixed size, so that enqueuing work does not allocate.
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

/// A stream of the host. The stream's thread runs its tasks in order; for
/// StreamKind::kCommOnCaller, the thread that synchronizes runs them. Tasks run with the default
/// floating-point environment. If a task throws, the device keeps the error, and the stream skips
/// its later tasks until Device::clear_error is called.
/// Lifetime: the destructor waits for the running task and drops the tasks that have not begun. If
/// it drops any, the device reports ABORTED, and other streams skip work that waits for dropped
/// tasks. The destructor does not wait for other streams, even if the next item of this stream
/// waits for one. Streams and events must be destroyed before their device.
class HostStream : public Stream {
 public:
  /// Enqueues a task. Threads: any, except the threads of streams. Allocates only if more work is
  /// pending than ever before. If the allocation fails, waits until some work is complete.
  virtual void enqueue(Task task) = 0;
};

/// Returns `stream` as a HostStream. Errors: INTERNAL if it belongs to another kind of device.
HostStream& host_stream(Stream& stream);

}  // namespace muonrt::host
