#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "train/options.hpp"
#include "train/run.hpp"
#include "train/text.hpp"

namespace muonrt::train {

/// Holds the lock of a folder until this object is destroyed. If the pointer is null, there is no
/// lock.
using FolderLock = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;

/// A run that saves checkpoints to the folder of `--save`, or resumes from one. The folder contains
/// a checkpoint of the optimizer with its parameters (muonrt/checkpoint.h), and train.json with the
/// arguments that affect the results. Batches and random numbers are not saved, because they depend
/// only on seed and step.
struct SavedRun {
  const Options& options;
  const RunPlan& plan;
  const Text& text;
  const std::string& products;  // Place::products

  /// Creates the folder `options.save` and its train.json. If the run resumes from this folder,
  /// changes only the number of steps in train.json. Call this function on rank 0 before the first
  /// checkpoint. Throws std::runtime_error if the folder holds a checkpoint of another run and
  /// `options.overwrite` is not set, or if another run has locked the folder.
  /// @return  the lock on the folder; empty if the file system does not support locks. Keep the
  ///     lock until the run ends, so that the weights and train.json belong to the same run.
  FolderLock begin_saving() const;
  /// Throws std::runtime_error on every rank unless `options.resume` holds a checkpoint of a run
  /// with the same options; only its number of steps may be smaller. The message names each option
  /// that differs.
  /// @return  a note for the user, or "".
  std::string require_resumable() const;
};

}  // namespace muonrt::train
