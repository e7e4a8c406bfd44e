#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "state/files.hpp"
#include "state/manifest.hpp"

namespace muonrt {

/// Name of the file in the folder that a save locks.
constexpr const char* kLockName = ".muonrt-lock";

/// Returns whether `name` is manifest-SAVE-STEP.json, the manifest of an older checkpoint.
bool is_older_manifest(std::string_view name);

// Names of files of the checkpoint `id`.
std::string rank_file(const std::string& id, int rank);
std::string probe_path(const std::string& folder, const std::string& id);

/// Rank 0's part of a save, while it holds the lock: writes the manifest, which makes the ranks'
/// files a checkpoint, and removes files of older checkpoints.
class Publisher {
 public:
  /// @param id  the ID in the names of this checkpoint's files.
  Publisher(Files& files, std::string folder, std::string id)
      : files_(files), folder_(std::move(folder)), id_(std::move(id)) {}

  /// Throws INVALID_ARGUMENT if the folder's newest checkpoint has parameters with other names or
  /// shapes. A damaged manifest has none.
  void require_same_model(const Manifest& manifest);
  /// Sets the number of the save in the manifest and writes it. Errors: IO; NOT_SUPPORTED if the
  /// folder's newest manifest has another format.
  /// @param published  becomes true as soon as the manifest is written, also if a later step fails.
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
