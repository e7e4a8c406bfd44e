#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "optimizer/planning.hpp"
#include "plan/batch.hpp"
#include "plan/machine/profile.hpp"

namespace muonrt::tool {

/// The seconds that the products of one matrix take by themselves; computed once for equal ones.
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

/// What it would gain to divide the costliest matrices by depth: a rank would have some of the
/// columns of the long side, sum its Gram matrices with the others, and repeat the products of
/// square matrices. Not implemented in the library.
struct DepthSplit {
  double before = 0, after = 0;  // seconds of products of the busiest rank
  double mean = 0;               // of all ranks, undivided
  int64_t matrices = 0;          // that would be divided in the best division; 0: too many to say
  int64_t ranks = 0;             // that share a matrix
  int64_t rows = 0, cols = 0;    // of the largest one
  int64_t sums = 0;              // of Gram matrices, for that one
  int64_t extra_bytes = 0;       // that each of its ranks would send for them
  int64_t equally_large = 0;     // matrices that cost as much as the largest one
};
DepthSplit split_by_depth(const Planning& planning, const MachineProfile& profile);

}  // namespace muonrt::tool
