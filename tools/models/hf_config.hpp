#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "models/shapes.hpp"

namespace muonrt::tool {

/// Returns the tensors of the model that a config.json of Hugging Face describes. The names are
/// those of the transformers library, except that the matrices of all experts of a layer form three
/// stacks: gate_proj, up_proj and down_proj. A tied head is left out. The notes of the result name
/// everything else that is left out. Throws a std::runtime_error that names the field and its
/// value.
/// @param file  the name of the file, for messages.
ModelShapes read_hf_config(const nlohmann::json& config, const std::string& file);

}  // namespace muonrt::tool
