#pragma once

#include <cstdint>
#include <string>

namespace muonrt::tool {

struct ImportArguments {
  std::string state = {}, params = {};  // each a safetensors file, an index or a folder
  std::string to = {};                  // destination folder
  int64_t step = 0;
  double momentum = 0.95, beta1 = 0.9;  // constants of the optimizers
};

/// Writes a checkpoint from a file of muonrt.convert, and prints the assumptions of the conversion.
/// Errors: INVALID_ARGUMENT with the name of the invalid tensor; IO; CORRUPT.
void import_checkpoint(const ImportArguments& arguments);

}  // namespace muonrt::tool
