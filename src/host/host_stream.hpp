#pragma once

#include <cstddef>
#include <new>
#include <type_traits>
#include <utility>

#include "backend/device.hpp"

namespace muonrt::host {

/// A closure in a fixed block of memory: enqueuing work allocates nothing.
class Task {
 public:
  static constexpr size_t kCapacity = 240;

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
/// that synchronizes, for StreamKind::kCommOnCaller).
class HostStream : public Stream {
 public:
  virtual void enqueue(Task task) = 0;
};

}  // namespace muonrt::host
