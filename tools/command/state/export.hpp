#pragma once

#include <cstdint>
#include <string>

#include "command/state/saved.hpp"

namespace muonrt::tool {

struct ExportArguments {
  Saved saved = {};
  std::string to = {};           // destination folder
  int64_t most = 5'000'000'000;  // maximum size of the tensors in a file that holds several
  bool state = false;
  bool json = false;
};

/// Writes the parameters as whole tensors, in F32 if the checkpoint has master weights or
/// remainders. With `state`, also writes momentum and moments. Errors: any error of Saved::open or
/// muonrt_checkpoint_read; IO; std::runtime_error if the values of a parameter were not saved, or
/// if the folder is not empty.
void export_checkpoint(const ExportArguments& arguments);

}  // namespace muonrt::tool
