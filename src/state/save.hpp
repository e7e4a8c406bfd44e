#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "state/checkpoint.hpp"
#include "state/files.hpp"
#include "state/manifest.hpp"

namespace muonrt {

/// Returns the shards that this rank writes. A parameter that is its master weights, rounded, is
/// not written, because a load computes it.
/// @param in_masters  which parameters are; null: all that have master weights.
std::vector<StateShard> shards_to_save(const Optimizer& optimizer, bool with_params,
                                       const std::vector<bool>* in_masters = nullptr);

SavedBytes bytes_written(const std::vector<StateShard>& shards);

/// One save into a folder. The destructor deletes this rank's file unless a manifest may name it. A
/// manifest may name it from the moment at which `publish` sends the size of the file to rank 0,
/// unless rank 0 then reports that it has not written the manifest. A forked child deletes nothing.
class Save {
 public:
  /// Checks that all ranks pass the same arguments, creates and locks the folder, and hashes the
  /// parameters. Collective. Errors: as muonrt_optimizer_save; all ranks return the same error,
  /// also if an allocation fails on one rank.
  Save(Optimizer& optimizer, const std::string& folder, const SaveSettings& settings, Files& files);
  ~Save();
  Save(const Save&) = delete;
  Save& operator=(const Save&) = delete;

  /// Returns the shards that this rank writes.
  std::vector<StateShard> shards(const Optimizer& optimizer) const;
  /// Writes this rank's file. Uses neither the communicator nor the optimizer.
  void write(const std::vector<StateShard>& shards, DeviceCopy& copy);
  /// Makes this save the newest checkpoint, unless a rank passes an error of its `write`.
  /// Collective. Errors: those of any rank's `write`, and IO; equal on all ranks.
  void publish(const std::optional<Error>& error);

 private:
  /// What each rank sends to all others.
  struct RankFile {
    int64_t bytes, header_crc32c;
  };
  void draw_id();
  void make_shared_folder();

  Comm& comm_;
  std::string folder_;
  const SaveSettings settings_;
  Files& files_;
  const int64_t step_;
  const Deadline::Clock::time_point start_ = Deadline::Clock::now();
  const pid_t process_;
  std::string id_;                // in the names of all files of this checkpoint
  std::string name_;              // of this rank's file
  std::string path_;              // of this rank's file
  std::vector<bool> in_masters_;  // by parameter: it is its master weights, rounded
  Manifest manifest_;             // rank 0: the manifest that `publish` writes
  ManifestFile own_file_;
  bool may_be_named_ = false;         // a manifest may name own_file_
  std::vector<RankFile> rank_files_;  // by rank
  FileLock lock_;                     // rank 0: of the folder
};

}  // namespace muonrt
