#pragma once

#include <string>

#include "state/files.hpp"
#include "state/manifest.hpp"

namespace muonrt {

/// All files of checkpoints begin so, but for manifests.
constexpr const char* kFilePrefix = "muonrt-";

/// Rank 0's part of a save: the manifest, which makes a checkpoint of files that are there, and
/// what of older ones goes then.
class Publisher {
 public:
  /// @param id  of this checkpoint, in the names of its files.
  Publisher(Files& files, std::string folder, std::string id)
      : files_(files), folder_(std::move(folder)), id_(std::move(id)) {}

  /// Errors: IO. It may be there all the same: see published().
  void publish(const Manifest& manifest, int64_t keep);
  bool published() const { return published_; }

 private:
  void write(const std::string& text, const std::string& name);
  void keep_newest();
  void clean(const Manifest& newest, int64_t keep);

  Files& files_;
  std::string folder_, id_;
  bool published_ = false;
};

}  // namespace muonrt
