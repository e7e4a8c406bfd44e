#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>

#include "backend/bootstrap.hpp"
#include "backend/cuda_comm.hpp"
#include "cuda/nccl_api.hpp"

namespace muonrt::cuda {

/// Turns NCCL's result into an Error, with NCCL's own words. COMM but for CUDA's errors (DEVICE).
Error nccl_error(const NcclApi& api, NcclHandle handle, NcclResult result, const char* call);

/// Owner of one ncclComm_t that does not block, and the first error that ended it. NCCL sees one
/// thread at a time. Threads: any.
class NcclLink {
 public:
  /// Makes a new one, splits one off `options.from`, or borrows it. Blocks up to the bootstrap's
  /// timeout. Not the caller's device but `options.device_index` must be current.
  /// Errors: COMM, TIMEOUT, INVALID_ARGUMENT if `from` has other ranks or another device.
  NcclLink(const NcclApi& api, Bootstrap& bootstrap, const NcclOptions& options,
           const NcclUniqueId& id);
  /// Not collective: waits two seconds for the peers at most, then aborts.
  ~NcclLink();

  /// Runs `calls(api, handle)` inside NCCL, then waits until NCCL has taken the work (its first
  /// operations connect to the peers). Errors: what ended it; NCCL's; TIMEOUT.
  template <class Calls>
  void issue(const char* what, Calls calls, Deadline deadline) {
    {
      const std::lock_guard lock(nccl_mutex_);
      require_open();
      const NcclResult result = calls(api_, handle_);
      if (result == kNcclSuccess) return;
      if (result != kNcclInProgress) throw nccl_error(api_, handle_, result, what);
    }
    settle(handle_, what, deadline);
  }
  /// An error that NCCL reports of work that it has taken, or that a peer has published.
  std::optional<Error> look();

  /// Ends everything; the first error counts. `before` runs between remembering the error and
  /// ending NCCL's work.
  void close(const Error& error, const std::function<void()>& before) noexcept;
  std::optional<Error> error() const;

 private:
  void connect(const NcclOptions& options, const NcclUniqueId& id);
  void check_ranks(NcclHandle handle, int device) const;
  void require_open() const;
  /// Until NCCL is done with what it was given.
  void settle(NcclHandle asked, const char* what, Deadline deadline);

  const NcclApi& api_;
  Bootstrap& bootstrap_;
  const bool borrowed_;
  NcclHandle handle_ = nullptr;
  std::mutex nccl_mutex_;  // held for single calls, never while waiting
  mutable std::mutex error_mutex_;
  std::optional<Error> error_;
  bool ended_ = false;
};

}  // namespace muonrt::cuda
