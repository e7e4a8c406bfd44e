#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "state/files.hpp"
#include "state/manifest.hpp"

namespace muonrt {

/// The name of the file that a save locks. The file is in the folder of the checkpoints.
constexpr const char* kLockName = ".muonrt-lock";

/// Returns true if `name` has the form manifest-SAVE-STEP.json. The manifests of older checkpoints
/// have such names.
bool is_older_manifest(std::string_view name);

// These functions return the names of files of the checkpoint with this ID.
std::string rank_file(const std::string& id, int rank);
std::string probe_path(const std::string& folder, const std::string& id);

/// Performs rank 0's part of a save, while rank 0 holds the lock. Writes the manifest, which turns
/// the files of the ranks into a checkpoint, and removes files of older checkpoints.
class Publisher {
 public:
  /// @param id  ID in the names of this checkpoint's files.
  Publisher(Files& files, std::string folder, std::string id)
      : files_(files), folder_(std::move(folder)), id_(std::move(id)) {}

  /// Throws INVALID_ARGUMENT if the newest checkpoint in the folder has parameters with different
  /// names or shapes. Does nothing if the manifest of the newest checkpoint is damaged.
  void require_same_model(const Manifest& manifest);
  /// Sets the number of the save in the manifest and writes the manifest. Errors: IO; NOT_SUPPORTED
  /// if the newest manifest in the folder has a different format.
  /// @param published  Becomes true as soon as the manifest is written, even if a later operation
  ///     fails.
  void publish(Manifest& manifest, int64_t keep, bool& published);

 private:
  void write(std::string_view text, const std::string& name);
  std::unique_ptr<SharedManifest> newest();
  int64_t keep_newest(int64_t keep);
  void clean(const Manifest& newest, int64_t keep);

  Files& files_;
  std::string folder_, id_;
};

}  // namespace muonrt
