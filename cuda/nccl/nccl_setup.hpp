#pragma once

#include <functional>
#include <memory>
#include <new>
#include <optional>

#include "backend/bootstrap.hpp"
#include "base/function_ref.hpp"
#include "cuda/nccl/nccl_api.hpp"

namespace muonrt::cuda {

/// Creates a communicator's bootstrap. The constructor of a communicator calls this function after
/// it has allocated its own memory, because the peers continue as soon as the bootstrap exists.
using MakeBootstrap = FunctionRef<std::unique_ptr<Bootstrap>()>;

/// Runs `begin`, which creates a communicator over `bootstrap`. If memory is exhausted, aborts the
/// bootstrap, so that the peers also return OUT_OF_MEMORY.
template <class Begin>
void nccl_create_or_abort(Bootstrap& bootstrap, Begin begin) {
  try {
    begin();
  } catch (const std::bad_alloc&) {
    bootstrap.abort(Error(Status::kOutOfMemory));
    throw;
  }
}

/// Where a rank's ncclComm_t comes from.
enum class NcclOrigin : int32_t { kNew, kSplit, kBorrowed };

/// One rank's contribution to the setup. On each rank, NCCL uses as many channels as that rank's
/// max_ctas allows. If max_ctas differs between ranks, NCCL hangs.
struct NcclSetup {
  std::optional<Error> error;  // the reason why this rank cannot take part
  int remote_error_level = 0;  // likelihood that a peer caused `error`; the error with the lowest
                               // level is reported
  int nccl_version = 0, library_version = 0;
  int max_ctas = 0;
  NcclOrigin origin = NcclOrigin::kNew;
  NcclUniqueId id{};  // only the id of rank 0 is used
};

/// Runs `prepare` and compares the results of all ranks. Collective; returns the same value or
/// throws the same error on all ranks.
/// @param prepare  returns this rank's contribution. If it throws an Error, the other ranks receive
///     the error.
/// @return  the id of rank 0.
/// Errors: the error of the lowest rank that has one, together with that rank's number; MISMATCH
/// with a list of the ranks that use each version or option.
NcclUniqueId agree_on_nccl_setup(Bootstrap& bootstrap, const std::function<NcclSetup()>& prepare);

/// Runs `function` on every rank. If it throws on any rank, all ranks throw the error of the lowest
/// rank on which it has thrown. Collective.
void nccl_run_collectively(Bootstrap& bootstrap, const std::function<void()>& function);

/// Like nccl_run_collectively, but for a function in which ranks wait for each other inside NCCL.
/// If the function fails on one rank, that rank publishes the error on `alarm`, which the other
/// ranks must poll while they wait. All ranks then throw the error that was published first,
/// together with the number of the rank on which it occurred. Collective.
/// @param may_block  true if ranks may block inside NCCL, where they check neither `alarm` nor a
///     timeout. A rank that fails then waits 10 seconds for the others and throws its own error.
void nccl_run_with_alarm(Bootstrap& bootstrap, bool may_block,
                         const std::function<void(const Bootstrap& alarm)>& function);

}  // namespace muonrt::cuda
