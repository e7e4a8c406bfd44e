#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace muonrt::tool {

/// The largest attention logit of each query head for QK-clip in one step.
struct StepLogits {
  std::vector<float> values;        // the layers in ascending order; empty: no layer has qk_clip
  std::vector<std::string> unused;  // tensors of layers without qk_clip
};

/// Reads one file for each step. Throws std::runtime_error if a file, a layer or a head is missing,
/// or if a tensor is not that of a layer.
/// @param layers  the layers with qk_clip and their numbers of query heads, ascending.
std::vector<StepLogits> read_logits(const std::vector<std::pair<int32_t, int32_t>>& layers,
                                    const std::vector<std::string>& paths, size_t steps);

}  // namespace muonrt::tool
