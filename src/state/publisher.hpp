#pragma once

#include <string>
#include <string_view>

#include "state/files.hpp"
#include "state/manifest.hpp"

namespace muonrt {

/// Whoever saves into a folder holds this file in it locked.
constexpr const char* kLockName = ".muonrt-lock";

// Names of what belongs to the checkpoint `id`.
std::string rank_file(const std::string& id, int rank);
std::string probe_path(const std::string& folder, const std::string& id);

/// Rank 0's part of a save, while it holds the lock: the manifest, which makes a checkpoint of
/// files that are there, and what of older ones goes then.
class Publisher {
 public:
  /// @param id  of this checkpoint, in the names of its files.
  Publisher(Files& files, std::string folder, std::string id)
      : files_(files), folder_(std::move(folder)), id_(std::move(id)) {}

  /// Numbers it, and writes it. Errors: IO, NOT_SUPPORTED (the newest there is of another format).
  /// @param published  true as soon as it is there, whatever fails then.
  void publish(Manifest& manifest, int64_t keep, bool& published);

 private:
  void write(std::string_view text, const std::string& name);
  int64_t keep_newest(int64_t keep);
  void clean(const Manifest& newest, int64_t keep);

  Files& files_;
  std::string folder_, id_;
};

}  // namespace muonrt
