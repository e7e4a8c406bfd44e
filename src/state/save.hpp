#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "state/checkpoint.hpp"
#include "state/files.hpp"
#include "state/manifest.hpp"

namespace muonrt {

/// A save on its way. What it has written goes with it unless it was published; a forked child
/// removes nothing.
class Save {
 public:
  /// Agrees on everything, and hashes the parameters. Collective. Errors: as muonrt_optimizer_save.
  /// No rank fails for want of memory before all are told.
  Save(Optimizer& optimizer, const std::string& folder, const SaveSettings& settings, Files& files);
  ~Save();
  Save(const Save&) = delete;
  Save& operator=(const Save&) = delete;

  /// This rank's file. No other rank is asked, and not the optimizer.
  void write(const std::vector<StateShard>& shards, DeviceCopy& copy);
  /// Makes it the newest checkpoint, unless a rank brings an error of its `write`. Collective.
  void publish(const std::optional<Error>& error);

 private:
  /// What a rank tells the others.
  struct RankFile {
    int64_t bytes, header_crc32c;
  };
  void draw_id();
  void make_shared_folder();
  void remove_own_file();

  Comm& comm_;
  std::string folder_;
  const SaveSettings settings_;
  Files& files_;
  const int64_t step_;
  const pid_t process_;
  std::string id_, name_;  // of the checkpoint, and of this rank's file
  std::string path_;       // of that
  Manifest manifest_;      // rank 0: what is to be published
  ManifestFile own_file_;
  std::vector<RankFile> rank_files_;  // by rank
  FileLock lock_;                     // rank 0: of the folder
};

}  // namespace muonrt
