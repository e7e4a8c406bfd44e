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

/// How long NCCL's end is waited for: a second for a call that is stuck inside NCCL, and two in
/// which NCCL joins its threads and gives its memory back. What takes longer is held up by a stream
/// of the caller's, for as long as that lasts.
constexpr int64_t kTeardownTimeoutMs = 3000;

/// One ncclComm_t, and what all links over it have in common: NCCL sees one thread at a time, one
/// error ends them all, and NCCL is told so once. Always owned by shared pointers. Threads: any.
class SharedNcclComm : public std::enable_shared_from_this<SharedNcclComm> {
 public:
  explicit SharedNcclComm(int device);
  /// That of all links over a handle of the caller's, also of communicators that know nothing of
  /// each other. Once its abort has ended, what has its value is another one. Errors: the first one
  /// of its links, as long as the abort is on its way.
  static std::shared_ptr<SharedNcclComm> for_borrowed_handle(NcclHandle handle, int device);

  /// Remembers the first error and raises the flag. Whether it was the first.
  bool fail(const Error& error) noexcept;
  std::optional<Error> error() const;
  void require_open() const;
  /// The lock of `nccl`, with nothing lost so far. Errors: the first error; TIMEOUT if another
  /// thread's call lasts longer.
  std::unique_lock<std::timed_mutex> enter(int64_t timeout_ms);

  /// Ends NCCL's work, once, after `fail`; all other calls are nothing. ncclCommAbort waits for
  /// what NCCL has enqueued, whose turn comes only when the streams before it are done, a caller's
  /// that has hung among them. So a thread of its own makes the call, and owns this until it
  /// returns.
  /// @param api  lives as long as the process.
  void begin_abort(const NcclApi& api) noexcept { start_teardown(api.abort); }
  void abort(const NcclApi& api) noexcept {
    begin_abort(api);
    wait_for_teardown();
  }
  /// Gives a communicator that is finalized back, in the same way: NCCL frees memory, which waits
  /// for whatever runs on the GPU.
  void destroy(const NcclApi& api) noexcept {
    start_teardown(api.destroy);
    wait_for_teardown();
  }
  /// Until an end that has begun is over, kTeardownTimeoutMs after it began at most.
  void wait_for_teardown() noexcept;
  /// Whether an end has begun: NCCL is entered no more.
  bool is_tearing_down() const;
  /// The flag is looked at until the GPU has come to `last` (null: no more).
  void keep_until(std::shared_ptr<const CudaEvent> last);

  /// One int32 in pinned memory, 1 from the first error on: up before NCCL lets go of anything.
  const int32_t* closed() const { return closed_.as<int32_t>(); }
  int device() const { return device_; }

  NcclHandle handle = nullptr;
  std::string name;       // NCCL keeps a pointer to it
  std::timed_mutex nccl;  // held for single calls, never while waiting

 private:
  using Call = NcclResult (*)(NcclHandle);
  bool gone() const;
  void start_teardown(Call call) noexcept;
  void end(Call call) noexcept;

  const int device_;
  CachedMemory closed_;
  mutable std::mutex error_mutex_;
  std::optional<Error> error_;
  mutable std::mutex end_mutex_;  // guards what follows
  std::condition_variable ended_;
  std::optional<Deadline> waits_;  // since the end has begun
  bool released_ = false;          // it is over
};

}  // namespace muonrt::cuda
