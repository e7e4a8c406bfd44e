#pragma once

#include <string>

#include "train/options.hpp"
#include "train/run.hpp"
#include "train/text.hpp"

namespace muonrt::train {

/// The run of a folder of `--save`. The folder holds a checkpoint of the optimizer with its
/// parameters (muonrt/checkpoint.h), and train.json with the arguments that results depend on. The
/// batches and the random numbers follow from seed and step.
struct SavedRun {
  const Options& options;
  const RunPlan& plan;
  const Text& text;
  const std::string& products;  // Place::products

  /// Creates the folder `options.save` with its train.json, unless the run resumes this folder.
  /// Rank 0 calls it before the first checkpoint. Throws std::runtime_error if the folder already
  /// holds a checkpoint.
  void begin_saving() const;
  /// Throws std::runtime_error on every rank unless `options.resume` holds a checkpoint of the same
  /// run; the message names each option that differs.
  /// @return  a note for the user, or "".
  std::string require_resumable() const;
};

}  // namespace muonrt::train
