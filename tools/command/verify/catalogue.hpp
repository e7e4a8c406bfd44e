#pragma once

#include <vector>

#include "command/verify/sharded.hpp"

namespace muonrt::tool {

/// One entry of what `muonrt verify` walks over: a layout and how the step is run.
struct VerifyCase {
  LayoutWords layout;
  RunSettings run;
};

/// Every form of layout that fits so many ranks. Quick: once each, settings in turn; full: each
/// with every dtype, both commits, and more meshes.
std::vector<VerifyCase> verify_cases(int ranks, bool full);

/// The dtypes that cases are run with; the case's name stands in its Numerics.
const std::vector<Numerics>& all_numerics();

/// Matrices of every awkward shape, twins, stacks of experts, fused matrices in parts, a
/// convolution, and what goes to AdamW.
std::vector<ModelTensor> verify_tensors();

}  // namespace muonrt::tool
