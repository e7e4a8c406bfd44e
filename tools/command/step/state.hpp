#pragma once

#include <memory>
#include <string>

#include "command/step/session.hpp"
#include "command/step/writer.hpp"

namespace muonrt::tool {

// State as one safetensors file of global tensors, which any mesh can go on from: `momentum/NAME`,
// `variance/NAME` (AdamW), `master/NAME` (bf16 parameters with f32 master weights),
// `remainder/NAME` (the lower halves of the f32 weights), `normuon/NAME`
// (second moments of the lines of all its matrices, expert by expert, part by part), and `step`,
// the number of steps that were committed. The metadata keep how each momentum was formed.

/// Collective. Throws where a tensor is missing, does not fit, or belongs to nothing.
void load_state(StepSession& session, const std::vector<StepTensor>& tensors,
                const std::string& path, int rank);

/// Collective; rank 0 writes, and gets the file, whole but for its name.
std::unique_ptr<TensorWriter> save_state(Comm& comm, StepSession& session,
                                         const std::vector<StepTensor>& tensors,
                                         const std::string& path);

}  // namespace muonrt::tool
