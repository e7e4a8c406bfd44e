#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace muonrt::tool {

/// The largest attention logit of each query head in one step, for QK-clip.
struct StepLogits {
  // layer by layer, in ascending order; empty if no layer has qk_clip
  std::vector<float> values;
  std::vector<std::string> unused;  // names of tensors for layers without qk_clip
};

/// Reads one file for each step. Throws std::runtime_error if a file, a layer or a head is missing,
/// or if a tensor is not named after a layer.
/// @param layers  the layers with qk_clip in ascending order, each with its number of query heads.
std::vector<StepLogits> read_logits(const std::vector<std::pair<int32_t, int32_t>>& layers,
                                    const std::vector<std::string>& paths, size_t steps);

}  // namespace muonrt::tool
