#pragma once

#include <string>
#include <vector>

#include "opt_json/config.hpp"

namespace muonrt::tool {

/// The largest attention logits of every query head, for QK-clip: for each step those of all
/// layers, ascending; empty lists if no rule has qk_clip.
/// @param used   the rules of the parameters that step.
/// @param paths  one file for each step.
/// Throws std::runtime_error if a file, a layer or a head is missing, or belongs to no qk_clip.
std::vector<std::vector<float>> read_logits(const StepConfig& config,
                                            const std::vector<size_t>& used,
                                            const std::vector<std::string>& paths, size_t steps);

}  // namespace muonrt::tool
