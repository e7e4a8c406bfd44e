#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "models/shapes.hpp"

namespace muonrt::tool {

/// Returns the tensors of the model that a Hugging Face config.json describes. They have the names
/// that the transformers library uses, except that the experts of a layer form three stacks:
/// gate_proj, up_proj and down_proj. A tied head is left out, and notes in the result name all
/// other tensors that are left out. Throws a std::runtime_error that names the field and its value.
/// @param file  the name of the file, for messages.
ModelShapes read_hf_config(const nlohmann::json& config, const std::string& file);

}  // namespace muonrt::tool
