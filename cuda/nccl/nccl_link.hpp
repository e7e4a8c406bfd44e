#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "backend/bootstrap.hpp"
#include "backend/cuda_comm.hpp"
#include "base/backoff.hpp"
#include "cuda/nccl/nccl_api.hpp"
#include "cuda/nccl/shared_nccl_comm.hpp"

namespace muonrt::cuda {

/// Without sleep for a millisecond, within which NCCL has mostly taken an operation (from 2.23 on
/// each costs it a thread).
inline Backoff nccl_backoff() {
  using std::chrono::microseconds;
  return Backoff(microseconds(1000), microseconds(100), microseconds(100));
}

/// Turns NCCL's result into an Error, with NCCL's own words. COMM but for CUDA's errors (DEVICE).
Error nccl_error(const NcclApi& api, NcclHandle handle, NcclResult result, const char* call);

/// Errors: INVALID_ARGUMENT if the caller's communicator has other ranks or another device than the
/// bootstrap and `device`; COMM.
void check_ranks(const NcclApi& api, NcclHandle handle, const Bootstrap& bootstrap, int device);

/// One communicator's way into an ncclComm_t of its own, that does not block, or a borrowed one.
/// Threads: any.
class NcclLink {
 public:
  /// @param shared  for_borrowed_handle, which is ready then; or new, for `make`.
  NcclLink(const NcclApi& api, Bootstrap& bootstrap, std::shared_ptr<SharedNcclComm> shared);
  /// Makes a communicator, or splits one off `options.from`, once. Collective. Blocks up to the
  /// bootstrap's timeout, unless `from` blocks. `options.device_index` must be current.
  /// @param alarm  ends the wait.
  /// Errors: COMM, DEVICE, TIMEOUT, what `alarm` tells; nothing but the destructor comes after it.
  void make(const NcclOptions& options, const NcclUniqueId& id, const Bootstrap& alarm);
  /// Of one that is made here, but not everywhere: it is not taken leave of. The peers are not
  /// told: they know, and may still be in the bootstrap, hearing of it.
  void discard_comm(const Error& error) noexcept;
  /// Not collective: waits two seconds for the peers at most, then aborts. NCCL's end is waited for
  /// as in `close`; one that lasts longer goes on without this.
  ~NcclLink();

  /// Runs `calls(api, handle)` inside NCCL, then waits until NCCL has taken the work (its first
  /// operations connect to the peers). Errors: what ended it; NCCL's; TIMEOUT.
  template <class Calls>
  void issue(const char* what, Calls calls, Deadline deadline) {
    {
      const std::lock_guard lock(shared_->nccl);
      shared_->require_open();
      const NcclResult result = calls(api_, shared_->handle);
      shared_->require_open();  // an abort that did not wait for this call has freed the handle
      if (result != kNcclSuccess && result != kNcclInProgress)
        throw nccl_error(api_, shared_->handle, result, what);
      if (result == kNcclSuccess && finished(shared_->handle, what)) return;
    }
    wait_until_accepted(shared_->handle, what, deadline, bootstrap_);
  }
  /// An error that NCCL reports of work that it has taken, or that a peer has published.
  std::optional<Error> poll_error();

  /// Ends everything; the first error counts, on all links over the handle. The abort has begun
  /// then, and is not waited for.
  void end(const Error& error) noexcept;
  /// The same, and waits until NCCL has let go, kTeardownTimeoutMs after the abort began at most.
  void close(const Error& error) noexcept;
  std::optional<Error> error() const { return shared_->error(); }

 private:
  void init(const NcclUniqueId& id, NcclConfig& config, Deadline deadline, const Bootstrap& alarm);
  void split(NcclHandle from, NcclConfig& config, Deadline deadline, const Bootstrap& alarm);
  bool finished(NcclHandle asked, const char* what) const;
  /// Until NCCL is done with what it was given, or `heard` tells of trouble.
  void wait_until_accepted(NcclHandle asked, const char* what, Deadline deadline,
                           const Bootstrap& heard);

  const NcclApi& api_;
  Bootstrap& bootstrap_;
  const std::shared_ptr<SharedNcclComm> shared_;
  bool own_ = false;                          // NCCL has written the handle of one of its own
  std::atomic<bool> peers_notified_ = false;  // the peers, of the error
};

}  // namespace muonrt::cuda
