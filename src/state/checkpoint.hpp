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
  bool overwrite = false;  // replace a checkpoint of another model
};

/// Bytes that this rank writes in a save.
struct SavedBytes {
  int64_t all = 0;
  int64_t params = 0;  // of them, of parameters
};

struct LoadSettings {
  std::string manifest = {};  // its name in the folder; "": that of the newest checkpoint
  bool with_params = true;    // load parameters if the checkpoint has them or their master weights;
                              // others must have the same values as at the save
  bool partial = false;       // initialize missing state, and ignore state that is not needed
};

/// Writes the state as the newest checkpoint into `folder`, which it creates if needed. The
/// previous checkpoint remains the newest one until the save is complete. Collective. Errors: as
/// muonrt_optimizer_save.
SavedBytes save_state(Optimizer& optimizer, const std::string& folder, const SaveSettings& settings,
                      Files& files);

/// Loads the state in `folder`. Collective.
/// @return  notes on differences, one per line, equal on all ranks.
/// Errors: as muonrt_optimizer_load.
std::string load_state(Optimizer& optimizer, const std::string& folder,
                       const LoadSettings& settings);

}  // namespace muonrt
