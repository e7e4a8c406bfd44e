#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "optimizer/planning.hpp"
#include "plan/batch.hpp"
#include "plan/machine/profile.hpp"

namespace muonrt::tool {

/// Computes the time for the products of one matrix in seconds, without any other work. For equal
/// matrices, computes it only once.
class MatrixSeconds {
 public:
  MatrixSeconds(const Planning& planning, const MachineProfile& profile);
  double of(int32_t id);

 private:
  const Planning& planning_;
  const MachineProfile& profile_;
  std::vector<NewtonSchulz> methods_;
  std::map<BatchKey, double> known_;
};

/// An estimate of how much faster a step would be if the costliest matrices were divided among
/// ranks along their long side. Each rank would hold some of the columns, the ranks would sum their
/// Gram matrices, and each rank would repeat the products of square matrices. The library does not
/// implement this.
struct DepthSplit {
  double before = 0, after = 0;  // product seconds of the busiest rank
  double mean = 0;               // product seconds without a division, averaged over the ranks
  int64_t matrices = 0;          // number of matrices in the best division; 0: too many to search
  int64_t ranks = 0;             // number of ranks that share a matrix
  int64_t rows = 0, cols = 0;    // shape of the largest divided matrix
  int64_t sums = 0;              // number of times its Gram matrices are summed
  int64_t extra_bytes = 0;       // bytes that each of its ranks would send for these sums
  int64_t equally_large = 0;     // number of matrices that cost as much as the largest
};
DepthSplit split_by_depth(const Planning& planning, const MachineProfile& profile);

}  // namespace muonrt::tool
