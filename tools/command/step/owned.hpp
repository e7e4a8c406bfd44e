#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "command/step/tensors.hpp"
#include "muonrt/muonrt.hpp"

namespace muonrt::tool {

/// Second moments of NorMuon of each of a tensor's matrices, expert by expert, part by part.
std::vector<int64_t> normuon_lines(const StepTensor& tensor);

/// The lines that `rank` keeps: those of its matrices; they lie there as among all.
/// @param plan  as muonrt_optimizer_describe writes it.
std::vector<Stretch> owned_lines(const StepTensor& tensor, const std::string& plan, int rank);

/// The elements of a tensor whose momentum (and variance) lie in this rank's view.
std::vector<Stretch> kept_elements(Optimizer& optimizer, const StepTensor& tensor, int32_t kind,
                                   int rank);

}  // namespace muonrt::tool
