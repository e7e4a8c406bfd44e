#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "comm/host_comm.hpp"
#include "comm/thread_transport.hpp"
#include "optimizer/optimizer.hpp"
#include "optimizer/planning.hpp"
#include "pipeline/orthogonalizer.hpp"
#include "state/background_save.hpp"
#include "state/checkpoint_reader.hpp"

// A handle consists of a header and a body. The header is never freed, so the library can detect a
// destroyed handle, or a handle of the wrong type, without reading freed memory.

namespace muonrt::api {

enum class HandleKind : uint64_t {
  kComm = 0x6d6d6f632d72756d,
  kThreadGroup = 0x7075672d72756d67,
  kOptimizer = 0x74706f2d72756d6f,
  kCheckpoint = 0x706b632d72756d6f,
  kOrthogonalizer = 0x6874726f2d756d6f,
  kPlan = 0x6e6c702d72756d6f,
};

struct HandleHeader {
  explicit HandleHeader(HandleKind kind);

  std::atomic<uint64_t> magic;  // the kind of the handle; after destruction, its complement
  /// The process that created the handle. The threads and connections of the body exist only in
  /// that process.
  const pid_t process;
  const HandleHeader* next = nullptr;
};

/// Passes the handle to the caller. A list keeps a pointer to its header, so leak checkers do not
/// report the header after the handle has been destroyed.
template <class T>
T* release_handle(std::unique_ptr<T> handle) noexcept {
  static std::atomic<const HandleHeader*> all = nullptr;
  handle->head.next = all.load();
  while (!all.compare_exchange_weak(handle->head.next, &handle->head)) continue;
  return handle.release();
}

/// Checks a handle. Errors: INVALID_ARGUMENT, with function and argument, if `head` is null,
/// destroyed, of a different kind, or not a handle; INVALID_STATE if another process created the
/// handle.
void check_handle(const HandleHeader* head, HandleKind kind, const char* function,
                  const char* argument);
/// Marks the handle as destroyed. Returns false in a forked child of the process that created it:
/// the child must not destroy the body, because the body's threads do not exist there.
/// Errors: INVALID_ARGUMENT in the same cases as check_handle().
bool mark_destroyed(HandleHeader& head, HandleKind kind, const char* function,
                    const char* argument);

/// The content of a communicator: a transport for host memory, and a Comm for GPU memory if the
/// communicator can exchange it.
struct CommBody {
  explicit CommBody(std::unique_ptr<Transport> transport) : host(std::move(transport)) {}

  HostComm host;                 // exchanges host memory
  std::unique_ptr<Comm> device;  // exchanges GPU memory; null if only host memory can be exchanged

  Comm& for_optimizer() { return device ? *device : host; }
  void abort(Status status, const std::string& message) noexcept {
    if (device) device->abort(status, message);
    // Optimizers and communicators that were created from this communicator use duplicates of its
    // transport.
    host.transport().abort_with_duplicates(status, message);
  }
};

/// Stores the data that a call returns by pointer. The data remains valid until the next call of
/// the same function.
struct BorrowedStorage {
  virtual ~BorrowedStorage() = default;
};

/// Returns the body of a handle. Errors: any error of check_handle(), with `argument`.
template <class T>
auto& unwrap(T* handle, const char* function, const char* argument = T::kArgument) {
  check_handle(handle ? &handle->head : nullptr, T::kKind, function, argument);
  return *handle->body;
}

/// Destroys the body, and then the members `parts` of the handle. A forked child destroys nothing,
/// because the destructors would stop threads, remove files and release locks of the parent.
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

namespace muonrt::api {
class CommCall;
}  // namespace muonrt::api

struct muonrt_comm {
  static constexpr auto kKind = muonrt::api::HandleKind::kComm;
  explicit muonrt_comm(std::unique_ptr<muonrt::Transport> transport)
      : body(std::make_unique<muonrt::api::CommBody>(std::move(transport))) {}

  muonrt::api::HandleHeader head{kKind};
  std::unique_ptr<muonrt::api::CommBody> body;

  std::mutex mutex;  // protects the members below
  std::condition_variable call_ended;
  muonrt::api::CommCall* calls = nullptr;  // list of the calls that are using the body
};

namespace muonrt::api {

/// A call that is using a communicator. The communicator is not destroyed before the call is
/// complete.
class CommCall {
 public:
  /// Begins a call. Errors: any error of check_handle(), with `argument`.
  CommCall(muonrt_comm* comm, const char* function, const char* argument = "comm");
  ~CommCall();
  CommCall(const CommCall&) = delete;
  CommCall& operator=(const CommCall&) = delete;

  CommBody& body() const { return *comm_->body; }

 private:
  friend void destroy_comm(muonrt_comm* comm);
  muonrt_comm* const comm_;
  const std::thread::id thread_ = std::this_thread::get_id();
  CommCall* next_ = nullptr;
};

/// Waits for calls in other threads, and then destroys the communicator. Errors: INVALID_STATE if
/// the calling thread is itself inside a call.
void destroy_comm(muonrt_comm* comm);

/// Passes the handle to the caller, and logs that the communicator was created.
muonrt_comm* release_comm(std::unique_ptr<muonrt_comm> comm) noexcept;
}  // namespace muonrt::api

struct muonrt_thread_group {
  static constexpr auto kKind = muonrt::api::HandleKind::kThreadGroup;
  explicit muonrt_thread_group(muonrt::ThreadGroup group)
      : body(std::make_unique<muonrt::ThreadGroup>(std::move(group))) {}

  muonrt::api::HandleHeader head{kKind};
  std::unique_ptr<muonrt::ThreadGroup> body;
};

struct muonrt_optimizer {
  static constexpr auto kKind = muonrt::api::HandleKind::kOptimizer;
  static constexpr const char* kArgument = "optimizer";

  muonrt::api::HandleHeader head{kKind};
  std::unique_ptr<muonrt::Optimizer> body;
  /// Null until memory for a save is reserved or a save begins.
  std::unique_ptr<muonrt::BackgroundSave> saving;
  // The result of the last muonrt_optimizer_get_state_shards().
  std::unique_ptr<muonrt::api::BorrowedStorage> state_shards;
  std::string load_notes;    // notes of the last load
  muonrt::SavedBytes saved;  // bytes of the last save
};

namespace muonrt::api {
/// Returns the optimizer. Errors: any error of unwrap(); INVALID_STATE if a step is in flight.
inline Optimizer& unwrap_idle(muonrt_optimizer* handle, const char* function) {
  Optimizer& optimizer = unwrap(handle, function);
  optimizer.require_idle(function);
  return optimizer;
}
}  // namespace muonrt::api

struct muonrt_checkpoint {
  static constexpr auto kKind = muonrt::api::HandleKind::kCheckpoint;
  static constexpr const char* kArgument = "checkpoint";

  muonrt::api::HandleHeader head{kKind};
  std::unique_ptr<muonrt::CheckpointReader> body;
};

struct muonrt_orthogonalizer {
  static constexpr auto kKind = muonrt::api::HandleKind::kOrthogonalizer;
  static constexpr const char* kArgument = "orthogonalizer";

  muonrt::api::HandleHeader head{kKind};
  std::unique_ptr<muonrt::Orthogonalizer> body;
  muonrt::DeviceKind device = muonrt::DeviceKind::kHost;
  int device_index = 0;
};

struct muonrt_plan {
  static constexpr auto kKind = muonrt::api::HandleKind::kPlan;
  static constexpr const char* kArgument = "plan";

  muonrt::api::HandleHeader head{kKind};
  std::unique_ptr<muonrt::Planning> body;
};
