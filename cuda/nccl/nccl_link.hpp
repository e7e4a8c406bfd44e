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

/// Returns a Backoff for polling that does not pause during the first millisecond. NCCL usually
/// accepts an operation within this time, although since version 2.23 it starts a thread for each
/// operation.
inline Backoff nccl_backoff() {
  using std::chrono::microseconds;
  return Backoff(microseconds(1000), microseconds(100), microseconds(100));
}

/// Turns a result of NCCL into an Error that contains NCCL's message: DEVICE for CUDA errors,
/// otherwise COMM.
Error nccl_error(const NcclApi& api, NcclHandle handle, NcclResult result, const char* call);

/// Checks the ranks and the device of the caller's communicator. Errors: INVALID_ARGUMENT if they
/// differ from the ranks of the bootstrap or from `device`; COMM.
void check_ranks(const NcclApi& api, NcclHandle handle, const Bootstrap& bootstrap, int device);

/// Gives one communicator access to an ncclComm_t. The ncclComm_t is either borrowed, or belongs to
/// the communicator and is non-blocking. Threads: any.
class NcclLink {
 public:
  /// @param shared  a new object, which `make` must then fill, or an object from
  ///     for_borrowed_handle, for which `make` must not be called.
  NcclLink(const NcclApi& api, Bootstrap& bootstrap, std::shared_ptr<SharedNcclComm> shared);
  /// Creates an ncclComm_t, or splits one from `options.from`. Call this function at most once.
  /// Collective. Blocks for at most the bootstrap's timeout, or without a limit if `from` is a
  /// blocking communicator. `options.device_index` must be current.
  /// @param alarm  if it reports an error, the wait ends.
  /// Errors: COMM, DEVICE, TIMEOUT, the error of `alarm`. After an error, only the destructor may
  /// be called.
  void make(const NcclOptions& options, const NcclUniqueId& id, const Bootstrap& alarm);
  /// Aborts an ncclComm_t that was created on this rank but not on all ranks. Does not notify the
  /// peers, because they already know the error and may still use the bootstrap to exchange it.
  void discard_comm(const Error& error) noexcept;
  /// Not collective. Waits at most two seconds for the peers, and then aborts. Waits for NCCL's
  /// teardown with the time limit of `close`. If the teardown takes longer, it continues in a
  /// separate thread.
  ~NcclLink();

  /// Runs `calls(api, handle)` inside NCCL, and then waits until NCCL has accepted the work. The
  /// first operations also connect to the peers. Errors: the error that ended the communicator;
  /// errors from NCCL; TIMEOUT.
  template <class Calls>
  void issue(const char* what, Calls calls, Deadline deadline) {
    {
      const std::lock_guard lock(shared_->nccl);
      shared_->require_open();
      const NcclResult result = calls(api_, shared_->handle);
      shared_->require_open();  // throws if an abort has freed the handle during the call
      if (result != kNcclSuccess && result != kNcclInProgress)
        throw nccl_error(api_, shared_->handle, result, what);
      if (result == kNcclSuccess && finished(shared_->handle, what)) return;
    }
    wait_until_accepted(shared_->handle, what, deadline, bootstrap_);
  }
  /// Returns an error in work that NCCL has accepted, or an error that a peer has published.
  std::optional<Error> poll_error();

  /// Ends all links that use the handle. If they have already ended, the first error is kept.
  /// Starts the abort and does not wait for it.
  void end(const Error& error) noexcept;
  /// Calls `end` and then waits for the abort, for at most kTeardownTimeoutMs after its start.
  void close(const Error& error) noexcept;
  std::optional<Error> error() const { return shared_->error(); }

 private:
  void init(const NcclUniqueId& id, NcclConfig& config, Deadline deadline, const Bootstrap& alarm);
  void split(NcclHandle from, NcclConfig& config, Deadline deadline, const Bootstrap& alarm);
  bool finished(NcclHandle handle, const char* what) const;
  /// Blocks until NCCL has completed the pending calls, or until `alarm` reports an error.
  void wait_until_accepted(NcclHandle handle, const char* what, Deadline deadline,
                           const Bootstrap& alarm);

  const NcclApi& api_;
  Bootstrap& bootstrap_;
  const std::shared_ptr<SharedNcclComm> shared_;
  bool own_ = false;  // NCCL has written the handle of a communicator that this link created
  std::atomic<bool> peers_notified_ = false;  // whether the peers were notified of the error
};

}  // namespace muonrt::cuda
