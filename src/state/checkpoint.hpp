#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "optimizer/optimizer.hpp"
#include "state/files.hpp"

namespace muonrt {

struct SaveSettings {
  bool with_params = false;
  int64_t keep = 1;  // checkpoints that stay in the folder, this one among them
};

struct LoadSettings {
  std::string manifest = {};  // its name in the folder; "": the newest
  bool with_params = true;    // where the checkpoint has them; else those that are there must match
  bool partial = false;       // what is absent starts anew, what is surplus is left
};

/// Writes the state into `folder`, which is made where there is none: the newest checkpoint there
/// is the old one until it is this one. Collective. Errors: as muonrt_optimizer_save.
void save_state(Optimizer& optimizer, const std::string& folder, const SaveSettings& settings,
                Files& files);

/// Goes on from the state in `folder`. Collective.
/// @return  what is worth knowing, lines that end, the same on every rank.
/// Errors: as muonrt_optimizer_load.
std::string load_state(Optimizer& optimizer, const std::string& folder,
                       const LoadSettings& settings);

}  // namespace muonrt
