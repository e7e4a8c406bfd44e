#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optimizer/optimizer.hpp"
#include "state/files.hpp"

namespace muonrt {

struct SaveSettings {
  bool with_params = true;
  int64_t keep = 1;        // number of checkpoints to keep in the folder, including this one
  bool overwrite = false;  // if true, a checkpoint of a different model may be replaced
};

/// The bytes that this rank writes in a save.
struct SavedBytes {
  int64_t all = 0;
  int64_t params = 0;  // bytes of parameters; included in `all`
};

struct LoadSettings {
  /// File name of the manifest in the folder. If it is empty, the newest checkpoint is loaded.
  std::string manifest = {};
  /// If true, parameters are loaded if the checkpoint contains them, directly or as master weights.
  /// All other parameters must already have the values that they had when the checkpoint was saved.
  bool with_params = true;
  bool partial = false;  // if true, missing state is initialized and surplus state is ignored
};

/// Writes the state into `folder` as the newest checkpoint. Creates the folder if it does not
/// exist. Until the save is complete, the previous checkpoint remains the newest one. Collective.
/// Errors: the same as muonrt_optimizer_save().
SavedBytes save_state(Optimizer& optimizer, const std::string& folder, const SaveSettings& settings,
                      Files& files);

/// Loads the state from `folder`. Collective.
/// @return Notes about differences, one per line. They are equal on all ranks.
/// Errors: the same as muonrt_optimizer_load().
std::string load_state(Optimizer& optimizer, const std::string& folder,
                       const LoadSettings& settings);

}  // namespace muonrt
