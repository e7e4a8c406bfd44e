#pragma once

#include <cstdint>
#include <string>

#include "command/state/saved.hpp"

namespace muonrt::tool {

struct ExportArguments {
  Saved saved = {};
  std::string to = {};           // destination folder
  int64_t most = 5'000'000'000;  // maximum bytes of tensors in a file with multiple tensors
  bool state = false;
  bool json = false;
};

/// Writes the parameters as whole tensors, in F32 if the checkpoint has master weights or
/// remainders. If `state` is set, also writes momentum and moments. Errors: any error of
/// Saved::open or muonrt_checkpoint_read; IO; std::runtime_error if the values of a parameter are
/// missing from the checkpoint, or if the folder is not empty.
void export_checkpoint(const ExportArguments& arguments);

}  // namespace muonrt::tool
