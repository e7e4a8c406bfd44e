#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "command/plan/models.hpp"

namespace muonrt::tool {

/// The tensors of one pipeline stage.
struct Stage {
  int64_t first_layer = 0, layers = 0;
  std::vector<ModelTensor> tensors;
};

/// Divides the layers of a model evenly over `count` stages. The first number in a tensor's name is
/// its layer. If there is a remainder, the stages with an additional layer are spread over the
/// pipeline. Embeddings are in the first stage, and other tensors without a layer are in the last
/// stage. Throws std::runtime_error if there are fewer layers than stages.
std::vector<Stage> pipeline_stages(std::vector<ModelTensor> tensors, int64_t count);

}  // namespace muonrt::tool
