#pragma once

#include <string>
#include <vector>

#include "models/shapes.hpp"

namespace muonrt::tool {

/// A published model: its config.json, which is built into the command.
struct NamedModel {
  const char* name;
  const char* json;
};

/// Returns all files in tools/models, with their names. CMake generates this list.
const std::vector<NamedModel>& named_models();

/// Returns whether `text` is the name of a file or folder, and not of a published model or a list
/// of shapes.
bool is_model_file(const std::string& text);

/// Returns the tensors of a published model, or of a file:
///   - a config.json of Hugging Face (hf_config.hpp), or a folder with one;
///   - *.safetensors (only its header is read);
///   - *.safetensors.index.json, with the headers of its shards in the same folder;
///   - a JSON of shapes: {"name": [rows, cols], "name": {"shape": [...], "stack": true, ...}}.
/// Throws a std::runtime_error that names the file, the field and the value.
ModelShapes read_model(const std::string& text);

}  // namespace muonrt::tool
