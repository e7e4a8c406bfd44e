#pragma once

#include <string>
#include <vector>

#include "opt_json/config.hpp"

namespace muonrt::tool {

/// Reads the largest attention logit of each query head for QK-clip. Returns a list for each step,
/// with the layers in ascending order; the lists are empty if no rule has qk_clip.
/// Throws std::runtime_error if a file, a layer or a head is missing, or if no qk_clip belongs to
/// it.
/// @param used   indices of the rules whose parameters the optimizer updates.
/// @param paths  one file for each step.
std::vector<std::vector<float>> read_logits(const StepConfig& config,
                                            const std::vector<size_t>& used,
                                            const std::vector<std::string>& paths, size_t steps);

}  // namespace muonrt::tool
