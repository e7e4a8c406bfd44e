#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "command/step/tensors.hpp"
#include "muonrt/muonrt.hpp"

namespace muonrt::tool {

/// Second moments of NorMuon of each of a tensor's matrices, expert by expert, part by part.
std::vector<int64_t> normuon_lines(const StepTensor& tensor);

/// The elements of a tensor (of NorMuon, the lines) whose state of that kind lies in this rank's
/// view.
std::vector<Stretch> owned_elements(Optimizer& optimizer, const StepTensor& tensor, int32_t kind,
                                    int rank);

}  // namespace muonrt::tool
