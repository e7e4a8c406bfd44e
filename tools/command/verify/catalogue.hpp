#pragma once

#include <string>
#include <vector>

#include "command/verify/sharded.hpp"

namespace muonrt::tool {

/// A layout and its options for `muonrt layout`. In the options, "..." replaces numbers that differ
/// between tensors.
struct ListedLayout {
  LayoutWords words;
  std::string arguments;
};
/// Returns every kind of layout that is possible with this number of ranks.
std::vector<ListedLayout> verify_layouts(int ranks);

/// One case of `muonrt verify`: a layout and the settings of the run.
struct VerifyCase {
  LayoutWords layout;
  RunSettings run;
};

/// Returns a case for each layout. The settings differ between the cases.
std::vector<VerifyCase> verify_cases(int ranks);

/// Returns the combinations of dtypes that the cases use in turn.
const std::vector<Numerics>& all_numerics();

/// Returns the tensors: matrices of unusual shapes, equal matrices, stacks of experts, fused
/// matrices with parts, a convolution, and tensors for AdamW.
std::vector<ModelTensor> verify_tensors();

}  // namespace muonrt::tool
