#pragma once

#include <sys/types.h>

#include <atomic>
#include <memory>
#include <string>

#include "comm/host_comm.hpp"
#include "comm/thread_transport.hpp"
#include "optimizer/optimizer.hpp"
#include "state/background_save.hpp"

// A handle is a head, which is never freed, and a body. So a handle that was destroyed, or is one
// of another kind, is told by its head, and no memory is read that has been given back.

namespace muonrt::api {

enum class HandleKind : uint64_t {
  kComm = 0x6d6d6f632d72756d,
  kThreadGroup = 0x7075672d72756d67,
  kOptimizer = 0x74706f2d72756d6f,
};

struct HandleHeader {
  explicit HandleHeader(HandleKind kind);

  std::atomic<uint64_t> magic;  // the kind's, or that of what was destroyed
  const pid_t process;          // whose threads and connections the body has
  const HandleHeader* next = nullptr;
};

/// Keeps the head reachable, so that no leak is seen in it.
template <class T>
T* release_handle(std::unique_ptr<T> handle) noexcept {
  static std::atomic<const HandleHeader*> all = nullptr;
  handle->head.next = all.load();
  while (!all.compare_exchange_weak(handle->head.next, &handle->head)) continue;
  return handle.release();
}

/// Errors: INVALID_ARGUMENT naming function and argument where `head` is null, destroyed, of
/// another kind, or no handle; INVALID_STATE in a child of the process that made it.
void check_handle(const HandleHeader* head, HandleKind kind, const char* function,
                  const char* argument);
/// Marks it destroyed. False in a child of its process: the body stays, whose threads are not
/// there. Errors: INVALID_ARGUMENT as above.
bool mark_destroyed(HandleHeader& head, HandleKind kind, const char* function,
                    const char* argument);

struct CommBody {
  explicit CommBody(std::unique_ptr<Transport> transport) : host(std::move(transport)) {}

  HostComm host;                 // moves the caller's host memory
  std::unique_ptr<Comm> device;  // moves what an optimizer has on a GPU; null: host memory

  Comm& for_optimizer() { return device ? *device : host; }
  void abort(Status status, const std::string& message) noexcept {
    if (device) device->abort(status, message);
    // All that was made from this communicator works on duplicates of the transport.
    host.transport().abort_with_duplicates(status, message);
  }
};

/// What a call has given out pointers to, until the next one.
struct BorrowedStorage {
  virtual ~BorrowedStorage() = default;
};

/// The body of a handle that can be used.
template <class T>
auto& unwrap(T* handle, const char* function, const char* argument) {
  check_handle(handle ? &handle->head : nullptr, T::kKind, function, argument);
  return *handle->body;
}

/// Destroys the body, and then `parts` of the handle. In a child of the process that made them all
/// stay: their destructors would end threads, remove files and release locks of the parent.
template <class T, class... Parts>
void destroy_handle(T* handle, const char* function, const char* argument, Parts T::*... parts) {
  if (!handle) return;
  const bool ours = mark_destroyed(handle->head, T::kKind, function, argument);
  const auto end = [&](auto& owner) {
    if (ours) {
      owner.reset();
    } else {
      static_cast<void>(owner.release());
    }
  };
  end(handle->body);
  (end(handle->*parts), ...);
}

}  // namespace muonrt::api

struct muonrt_comm {
  static constexpr auto kKind = muonrt::api::HandleKind::kComm;
  explicit muonrt_comm(std::unique_ptr<muonrt::Transport> transport)
      : body(std::make_unique<muonrt::api::CommBody>(std::move(transport))) {}

  muonrt::api::HandleHeader head{kKind};
  std::unique_ptr<muonrt::api::CommBody> body;
};

struct muonrt_thread_group {
  static constexpr auto kKind = muonrt::api::HandleKind::kThreadGroup;
  explicit muonrt_thread_group(muonrt::ThreadGroup group)
      : body(std::make_unique<muonrt::ThreadGroup>(std::move(group))) {}

  muonrt::api::HandleHeader head{kKind};
  std::unique_ptr<muonrt::ThreadGroup> body;
};

struct muonrt_optimizer {
  static constexpr auto kKind = muonrt::api::HandleKind::kOptimizer;

  muonrt::api::HandleHeader head{kKind};
  std::unique_ptr<muonrt::Optimizer> body;
  std::unique_ptr<muonrt::BackgroundSave> saving;  // where one was asked for
  std::unique_ptr<muonrt::api::BorrowedStorage>
      extents;             // of the last muonrt_optimizer_get_state_shards
  std::string load_notes;  // of the last load
};
