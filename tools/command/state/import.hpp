#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muonrt::tool {

struct ImportArguments {
  std::string state = {}, params = {};  // safetensors: a file, an index or a folder
  std::string from = {};                // one of import_formats
  std::string to = {};                  // the folder
  int64_t step = 0;
  double momentum = 0.95, beta1 = 0.9;  // what the state was made with
};

std::vector<std::string> import_formats();

/// Writes a checkpoint from what another optimizer kept, and prints what was assumed.
/// Errors: INVALID_ARGUMENT for what does not fit, naming the tensor; IO; CORRUPT.
void import_checkpoint(const ImportArguments& arguments);

}  // namespace muonrt::tool
