#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "command/step/session.hpp"
#include "command/step/writer.hpp"

namespace muonrt::tool {

// State as one safetensors file of global tensors, which any mesh can go on from: `momentum/NAME`,
// `variance/NAME` (AdamW), `master/NAME` (bf16 parameters with f32 master weights),
// `remainder/NAME` (the lower halves of the f32 weights), `normuon/NAME`
// (second moments of the lines of all its matrices, expert by expert, part by part), `updates/NAME`
// (AdamW: the steps in which it took part; absent in older files, which then count all), and
// `step`, the number of steps that were committed. Its metadata are in README.md.

/// Collective. Throws where a byte is damaged, where the parameters are others than those that the
/// state belongs to, where a tensor is missing, does not fit, or belongs to nothing. Rank 0 checks
/// bytes and parameters, and says what cannot be checked.
void load_state(StepSession& session, const std::vector<StepTensor>& tensors,
                const TensorModel& params, const std::string& path, int rank);

/// Collective; rank 0 writes, and gets the file, whole but for its name.
/// @param hashes  of each tensor that steps, as --out writes it; on rank 0.
std::unique_ptr<TensorWriter> save_state(Comm& comm, StepSession& session,
                                         const std::vector<StepTensor>& tensors,
                                         const std::vector<uint64_t>& hashes,
                                         const std::string& path);

}  // namespace muonrt::tool
