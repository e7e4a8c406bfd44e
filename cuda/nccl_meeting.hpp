#pragma once

#include <functional>
#include <optional>

#include "backend/bootstrap.hpp"
#include "cuda/nccl_api.hpp"

namespace muonrt::cuda {

/// What one rank brings to a meeting.
struct NcclGuest {
  std::optional<Error> error;  // why it cannot take part
  int nccl_version = 0, library_version = 0;
  NcclUniqueId id{};  // rank 0's counts
};

/// Prepares, then compares with all ranks; the same outcome on each. Collective.
/// @param prepare  this rank's part; an Error it throws is told to the others.
/// @return  rank 0's id.
/// Errors: the first rank's error, with its number; MISMATCH naming the ranks of each version.
NcclUniqueId nccl_meet(Bootstrap& bootstrap, const std::function<NcclGuest()>& prepare);

/// Runs `work`; throws the first rank's error on all of them. Collective.
void nccl_together(Bootstrap& bootstrap, const std::function<void()>& work);

}  // namespace muonrt::cuda
