#pragma once

#include "command/state/saved.hpp"

namespace muonrt::tool {

struct ExportArguments {
  Saved saved = {};
  std::string to = {};           // the folder
  int64_t most = 5'000'000'000;  // bytes of a shard's tensors, unless it is one tensor
  bool state = false;
  bool json = false;
};

/// Writes the parameters as whole tensors, in full precision where the checkpoint has it; with
/// `state` momentum and moments, too. Errors: as Saved::read, StateSources; INVALID_ARGUMENT where
/// the values of a parameter were not saved; IO; std::runtime_error where the folder has something
/// in it.
void export_checkpoint(const ExportArguments& arguments);

}  // namespace muonrt::tool
