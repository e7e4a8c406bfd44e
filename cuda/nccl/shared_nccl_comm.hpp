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

/// Time limit for NCCL's teardown: one second for a call that is blocked inside NCCL, and two
/// seconds in which NCCL joins its threads and frees its memory. If the teardown takes longer, a
/// caller's stream is blocking it.
constexpr int64_t kTeardownTimeoutMs = 3000;

/// One ncclComm_t and the state that all links to it share. Only one thread at a time calls NCCL.
/// The first error ends all links, and NCCL is aborted once. Always held by shared pointers.
/// Threads: any.
class SharedNcclComm : public std::enable_shared_from_this<SharedNcclComm> {
 public:
  explicit SharedNcclComm(int device);
  /// Returns the object for the caller's `handle`. All links to this handle share the object, even
  /// if they belong to unrelated communicators. After an abort has ended, NCCL may reuse the handle
  /// value, so a new object is created. Errors: while an abort is in progress, the first error of
  /// the object's links.
  static std::shared_ptr<SharedNcclComm> for_borrowed_handle(NcclHandle handle, int device);

  /// Stores the error and sets `closed`, unless another error is already stored. Returns whether
  /// this error is the first error.
  bool fail(const Error& error) noexcept;
  std::optional<Error> error() const;
  void require_open() const;
  /// Locks `nccl` if there is no error. Errors: the first error; TIMEOUT if another thread does not
  /// release the lock within the timeout.
  std::unique_lock<std::timed_mutex> enter(int64_t timeout_ms);

  /// Aborts NCCL's work. Call it after `fail`; only the first call has an effect. ncclCommAbort
  /// waits for the work that NCCL has enqueued, and this work may wait for a caller's stream that
  /// never continues. Therefore a separate thread calls ncclCommAbort, and keeps this object alive
  /// until the call returns.
  /// @param api  must stay valid until the process ends.
  void begin_abort(const NcclApi& api) noexcept { start_teardown(api.abort); }
  void abort(const NcclApi& api) noexcept {
    begin_abort(api);
    wait_for_teardown();
  }
  /// Destroys a finalized communicator. Like an abort, this happens in a separate thread: NCCL
  /// frees memory, and therefore waits for all work on the GPU.
  void destroy(const NcclApi& api) noexcept {
    start_teardown(api.destroy);
    wait_for_teardown();
  }
  /// Waits for a teardown that has been started, until at most kTeardownTimeoutMs after its start.
  void wait_for_teardown() noexcept;
  /// Returns whether a teardown has been started. Afterwards no thread may call NCCL.
  bool is_tearing_down() const;
  /// Keeps `closed` allocated until the GPU has reached `last`. Null means that no work needs it.
  void keep_until(std::shared_ptr<const CudaEvent> last);

  /// One int32 in pinned memory; 1 after the first error. It is set before NCCL frees anything.
  const int32_t* closed() const { return closed_.as<int32_t>(); }
  int device() const { return device_; }

  NcclHandle handle = nullptr;
  std::string name;       // NCCL stores a pointer to this text
  std::timed_mutex nccl;  // held during single calls, never while waiting

 private:
  using Call = NcclResult (*)(NcclHandle);
  bool is_released() const;
  void start_teardown(Call call) noexcept;
  void end(Call call) noexcept;

  const int device_;
  CachedMemory closed_;
  mutable std::mutex error_mutex_;
  std::optional<Error> error_;
  mutable std::mutex end_mutex_;  // guards the members below
  std::condition_variable ended_;
  std::optional<Deadline> teardown_deadline_;  // set when a teardown starts
  bool released_ = false;                      // the teardown is complete
};

}  // namespace muonrt::cuda
