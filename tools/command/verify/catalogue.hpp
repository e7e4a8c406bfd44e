#pragma once

#include <string>
#include <vector>

#include "command/verify/sharded.hpp"

namespace muonrt::tool {

/// A layout, and its options for `muonrt layout`; "..." replaces numbers that differ by tensor.
struct ListedLayout {
  LayoutWords words;
  std::string arguments;
};
/// Every form of layout that is possible for this number of ranks.
std::vector<ListedLayout> verify_layouts(int ranks);

/// One case of `muonrt verify`: a layout and the settings of the run.
struct VerifyCase {
  LayoutWords layout;
  RunSettings run;
};

/// All layouts, with changing settings.
std::vector<VerifyCase> verify_cases(int ranks);

/// The combinations of dtypes, which the cases use in turn.
const std::vector<Numerics>& all_numerics();

/// The tensors: matrices of unusual shapes, equal matrices, stacks of experts, fused matrices with
/// parts, a convolution, and tensors for AdamW.
std::vector<ModelTensor> verify_tensors();

}  // namespace muonrt::tool
