#pragma once

#include <cstdint>
#include <string>

#include "command/state/saved.hpp"

namespace muonrt::tool {

struct ExportArguments {
  Saved saved = {};
  std::string to = {};           // the folder
  int64_t most = 5'000'000'000;  // largest size of the tensors in a file with several of them
  bool state = false;
  bool json = false;
};

/// Writes the parameters as whole tensors, in F32 if the checkpoint has master weights or
/// remainders; with `state` also momentum and moments. Errors: as Saved::open and
/// muonrt_checkpoint_read; IO; std::runtime_error if the values of a parameter were not saved, or
/// the folder is not empty.
void export_checkpoint(const ExportArguments& arguments);

}  // namespace muonrt::tool
