#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "base/deadline.hpp"
#include "cuda/device/cached_memory.hpp"
#include "cuda/device/cuda_device.hpp"
#include "cuda/nccl/nccl_api.hpp"

namespace muonrt::cuda {

/// How long to wait for NCCL's teardown: one second for a call that is blocked inside NCCL, and two
/// in which NCCL joins its threads and frees its memory. If it takes longer, a caller's stream
/// blocks it.
constexpr int64_t kTeardownTimeoutMs = 3000;

/// One ncclComm_t and the state that all links over it share. NCCL is entered by one thread at a
/// time; one error ends all links, and NCCL is aborted once. Always owned by shared pointers.
/// Threads: any.
class SharedNcclComm : public std::enable_shared_from_this<SharedNcclComm> {
 public:
  explicit SharedNcclComm(int device);
  /// Returns the object that all links over the caller's `handle` share, even if they belong to
  /// unrelated communicators. After an abort has ended, NCCL may reuse the handle value, so a new
  /// object is created. Errors: the first error of its links while the abort is in progress.
  static std::shared_ptr<SharedNcclComm> for_borrowed_handle(NcclHandle handle, int device);

  /// Stores the first error and sets the flag. Returns whether this error was the first.
  bool fail(const Error& error) noexcept;
  std::optional<Error> error() const;
  void require_open() const;
  /// Locks `nccl` if there is no error. Errors: the first error; TIMEOUT if another thread's call
  /// takes longer.
  std::unique_lock<std::timed_mutex> enter(int64_t timeout_ms);

  /// Aborts NCCL's work, once, after `fail`; later calls do nothing. ncclCommAbort waits for the
  /// work that NCCL has enqueued, which may wait for a caller's stream that never continues.
  /// Therefore a separate thread makes the call, and owns this object until the call returns.
  /// @param api  must stay valid until the process ends.
  void begin_abort(const NcclApi& api) noexcept { start_teardown(api.abort); }
  void abort(const NcclApi& api) noexcept {
    begin_abort(api);
    wait_for_teardown();
  }
  /// Destroys a finalized communicator, also in a separate thread, because NCCL frees memory, which
  /// waits for all work on the GPU.
  void destroy(const NcclApi& api) noexcept {
    start_teardown(api.destroy);
    wait_for_teardown();
  }
  /// Waits until a teardown that has started is complete, at most kTeardownTimeoutMs after its
  /// start.
  void wait_for_teardown() noexcept;
  /// Whether a teardown has started; NCCL is not entered any more.
  bool is_tearing_down() const;
  /// Keeps the flag until the GPU has reached `last` (null: no longer).
  void keep_until(std::shared_ptr<const CudaEvent> last);

  /// One int32 in pinned memory, 1 after the first error. It is set before NCCL frees anything.
  const int32_t* closed() const { return closed_.as<int32_t>(); }
  int device() const { return device_; }

  NcclHandle handle = nullptr;
  std::string name;       // NCCL keeps a pointer to it
  std::timed_mutex nccl;  // held for single calls, never while waiting

 private:
  using Call = NcclResult (*)(NcclHandle);
  bool is_released() const;
  void start_teardown(Call call) noexcept;
  void end(Call call) noexcept;

  const int device_;
  CachedMemory closed_;
  mutable std::mutex error_mutex_;
  std::optional<Error> error_;
  mutable std::mutex end_mutex_;  // guards the members after it
  std::condition_variable ended_;
  std::optional<Deadline> teardown_deadline_;  // set when a teardown starts
  bool released_ = false;                      // the teardown is complete
};

}  // namespace muonrt::cuda
