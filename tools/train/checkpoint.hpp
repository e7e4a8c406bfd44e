#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "train/options.hpp"
#include "train/run.hpp"
#include "train/text.hpp"

namespace muonrt::train {

/// The lock of a folder, which ends with this object; empty: none.
using FolderLock = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

/// The run of a folder of `--save`. The folder holds a checkpoint of the optimizer with its
/// parameters (muonrt/checkpoint.h), and train.json with the arguments that results depend on. The
/// batches and the random numbers follow from seed and step.
struct SavedRun {
  const Options& options;
  const RunPlan& plan;
  const Text& text;
  const std::string& products;  // Place::products

  /// Creates the folder `options.save` with its train.json. If the run resumes this folder, changes
  /// only the number of steps there. Rank 0 calls it before the first checkpoint. Throws
  /// std::runtime_error if the folder holds a checkpoint of another run and `options.overwrite` is
  /// not set, or if another run has the lock.
  /// @return  the lock of the folder, which the run must hold, so that weights and train.json are
  ///     of one run; empty if the file system has no locks.
  FolderLock begin_saving() const;
  /// Throws std::runtime_error on every rank unless `options.resume` holds a checkpoint of the same
  /// run, whose number of steps may be smaller; the message names each option that differs.
  /// @return  a note for the user, or "".
  std::string require_resumable() const;
};

}  // namespace muonrt::train
