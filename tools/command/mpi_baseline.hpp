#pragma once

#include <memory>

#include "command/bench/exchange_workload.hpp"

namespace muonrt::tool {

/// MPI's own all-to-all-v over the ranks of mpirun, to be measured beside ours.
class MpiBaseline {
 public:
  /// Null where this process is no rank of mpirun, or a rank moves more than MPI counts (2 GiB).
  /// @param timeout  seconds of one exchange; then the process ends.
  static std::unique_ptr<MpiBaseline> of(int rank, const ExchangeSizes& sizes, double timeout);
  virtual ~MpiBaseline() = default;
  /// Milliseconds on this rank. Collective.
  virtual double run() = 0;
};

}  // namespace muonrt::tool
