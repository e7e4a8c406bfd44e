#pragma once

#include <string>
#include <vector>

#include "muonrt/muonrt.hpp"

namespace muonrt::tool {

/// A checkpoint that the command line selects.
struct Saved {
  std::string folder;
  std::string manifest = {};  // file name of an older manifest; empty: the newest

  std::string path() const {
    return folder + "/" + (manifest.empty() ? "manifest.json" : manifest);
  }
  /// Errors: any error of muonrt_checkpoint_open().
  Checkpoint open() const { return Checkpoint(folder, manifest); }
};

/// Returns a JSON list of texts.
std::string texts_json(const std::vector<std::string>& texts);

/// Returns the name of a kind of state, such as "momentum", or "param" for the parameter itself.
const char* kind_text(int32_t kind);
/// Returns the name of a tensor's dtype in safetensors, such as "F32".
const char* dtype_text(const muonrt_checkpoint_tensor_t& tensor);
/// Returns a text such as "momentum of param 'w'".
std::string tensor_text(const muonrt_checkpoint_tensor_t& tensor);
/// Returns the size of an element in bytes.
int64_t element_size(const muonrt_checkpoint_tensor_t& tensor);

/// Returns all tensors that have elements. Errors: any error of muonrt_checkpoint_get_tensor().
std::vector<muonrt_checkpoint_tensor_t> tensors_with_data(Checkpoint& checkpoint);

}  // namespace muonrt::tool
