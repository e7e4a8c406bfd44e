#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "train/options.hpp"
#include "train/run.hpp"
#include "train/text.hpp"

namespace muonrt::train {

/// The lock of a folder. It is released when this object is destroyed. If the pointer is null,
/// there is no lock.
using FolderLock = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

/// The run whose checkpoint is in a folder of `--save`. The folder holds a checkpoint of the
/// optimizer with its parameters (muonrt/checkpoint.h), and train.json with the arguments that
/// results depend on. Batches and random numbers are not saved, because they follow from seed and
/// step.
struct SavedRun {
  const Options& options;
  const RunPlan& plan;
  const Text& text;
  const std::string& products;  // Place::products

  /// Creates the folder `options.save` with its train.json. Changes only the number of steps in
  /// train.json if the run resumes from this folder. Rank 0 calls this before the first checkpoint.
  /// Throws std::runtime_error if the folder holds a checkpoint of another run and
  /// `options.overwrite` is not set, or if another run has locked the folder.
  /// @return  the lock of the folder, which the run must keep, so that the weights and train.json
  ///     belong to the same run; empty if the file system does not support locks.
  FolderLock begin_saving() const;
  /// Throws std::runtime_error on every rank unless `options.resume` holds a checkpoint of the same
  /// run. This run may have more steps. The message names each option that differs.
  /// @return  a note for the user, or "".
  std::string require_resumable() const;
};

}  // namespace muonrt::train
