#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optimizer/optimizer.hpp"
#include "state/files.hpp"

namespace muonrt {

struct SaveSettings {
  bool with_params = false;
  int64_t keep = 1;  // number of checkpoints to keep in the folder, including this one
};

struct LoadSettings {
  std::string manifest = {};  // its name in the folder; "": that of the newest checkpoint
  bool with_params = true;  // load parameters if the checkpoint has them; otherwise the optimizer's
                            // parameters must have the same values as at the save
  bool partial = false;     // initialize missing state, and ignore state that is not needed
};

/// Writes the state as the newest checkpoint into `folder`, which it creates if needed. The
/// previous checkpoint remains the newest one until the save is complete. Collective. Errors: as
/// muonrt_optimizer_save.
void save_state(Optimizer& optimizer, const std::string& folder, const SaveSettings& settings,
                Files& files);

/// Loads the state in `folder`. Collective.
/// @return  notes on differences, one per line, equal on all ranks.
/// Errors: as muonrt_optimizer_load.
std::string load_state(Optimizer& optimizer, const std::string& folder,
                       const LoadSettings& settings);

}  // namespace muonrt
