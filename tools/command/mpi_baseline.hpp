#pragma once

#include <memory>

#include "command/bench/exchange_workload.hpp"

namespace muonrt::tool {

/// The all-to-all-v of MPI over the ranks of mpirun, with which ours is compared.
class MpiBaseline {
 public:
  /// Null if this process is not a rank of mpirun, or if a rank sends more than MPI can count (2
  /// GiB).
  /// @param timeout  limit of one exchange in seconds, after which the process ends.
  static std::unique_ptr<MpiBaseline> of(int rank, const ExchangeSizes& sizes, double timeout);
  virtual ~MpiBaseline() = default;
  /// Milliseconds on this rank. Collective.
  virtual double run() = 0;
};

}  // namespace muonrt::tool
