#pragma once

#include <functional>
#include <memory>
#include <new>
#include <optional>

#include "backend/bootstrap.hpp"
#include "base/function_ref.hpp"
#include "cuda/nccl/nccl_api.hpp"

namespace muonrt::cuda {

/// Makes a communicator's bootstrap: in its constructor, when its own memory is there, for then its
/// peers go on.
using MakeBootstrap = FunctionRef<std::unique_ptr<Bootstrap>()>;

/// Runs `begin`, which makes a communicator over `bootstrap`. Where a rank has no memory for it,
/// its peers hear so.
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

/// What one rank brings to a meeting. NCCL gives each rank as many channels as its own max_ctas
/// allows, and ranks with other numbers wait for one another.
struct NcclSetup {
  std::optional<Error> error;  // why it cannot take part
  int remote_error_level = 0;  // how likely another rank's error has caused it; the least counts
  int nccl_version = 0, library_version = 0;
  int max_ctas = 0;
  NcclOrigin origin = NcclOrigin::kNew;
  NcclUniqueId id{};  // rank 0's counts
};

/// Prepares, then compares with all ranks; the same outcome on each. Collective.
/// @param prepare  this rank's part; an Error it throws is told to the others.
/// @return  rank 0's id.
/// Errors: the first rank's error, with its number; MISMATCH naming the ranks of each version or
/// option.
NcclUniqueId agree_on_nccl_setup(Bootstrap& bootstrap, const std::function<NcclSetup()>& prepare);

/// Runs `work`; throws the first rank's error on all of them. Collective.
void nccl_run_collectively(Bootstrap& bootstrap, const std::function<void()>& work);

/// The same of work in which ranks wait for one another where the bootstrap does not see it. What
/// fails on one rank is heard by the others on `alarm`, at which their waits look; then all throw
/// what has begun it, with that rank's number. Collective.
/// @param may_block  the waits may know neither alarm nor deadline: a rank that fails gives the
///     others ten seconds, then throws its own error.
void nccl_run_with_alarm(Bootstrap& bootstrap, bool may_block,
                         const std::function<void(const Bootstrap& alarm)>& work);

}  // namespace muonrt::cuda
