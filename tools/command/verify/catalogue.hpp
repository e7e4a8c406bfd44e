#pragma once

#include <string>
#include <vector>

#include "command/verify/sharded.hpp"

namespace muonrt::tool {

/// A layout, and the same as options of `muonrt layout`; "..." are numbers that differ by tensor.
struct ListedLayout {
  LayoutWords words;
  std::string arguments;
};
/// Every form of layout that fits so many ranks.
std::vector<ListedLayout> verify_layouts(int ranks);

/// One entry of what `muonrt verify` walks over: a layout and how the step is run.
struct VerifyCase {
  LayoutWords layout;
  RunSettings run;
};

/// All layouts, with settings in turn.
std::vector<VerifyCase> verify_cases(int ranks);

/// The dtypes that cases are run with; the case's name stands in its Numerics.
const std::vector<Numerics>& all_numerics();

/// Matrices of every awkward shape, twins, stacks of experts, fused matrices in parts, a
/// convolution, and what goes to AdamW.
std::vector<ModelTensor> verify_tensors();

}  // namespace muonrt::tool
