#pragma once

#include <string>

#include "train/options.hpp"
#include "train/run.hpp"
#include "train/text.hpp"

namespace muonrt::train {

/// A folder of `--save` holds the optimizer's checkpoint, parameters with it (muonrt/state.h), and
/// train.json: all that the bits of later steps depend on besides. Where the run stands in its
/// data, and its random numbers, follow from seed and step.
struct SavedRun {
  const Options& options;
  const RunPlan& plan;
  const Text& text;
  const std::string& products;  // of Place

  /// Makes the folder `options.save` and its train.json, unless it is the one that is resumed.
  /// For rank 0, before the first checkpoint. Throws std::runtime_error where the folder holds one.
  void begin_saving() const;
  /// Throws std::runtime_error, alike on every rank, unless `options.resume` holds a checkpoint of
  /// this very run; the error names each option that differs. @return  a line to be told, or "".
  std::string require_resumable() const;
};

}  // namespace muonrt::train
