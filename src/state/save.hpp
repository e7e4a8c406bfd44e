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

/// Returns the shards that this rank writes. A parameter that equals its rounded master weights is
/// not written, because loading can compute it from the master weights.
/// @param in_masters  For each parameter, true if it equals its rounded master weights. If null,
///     this is assumed for all parameters with master weights.
std::vector<StateShard> shards_to_save(const Optimizer& optimizer, bool with_params,
                                       const std::vector<bool>* in_masters = nullptr);

SavedBytes bytes_written(const std::vector<StateShard>& shards);

/// One save into a folder. The destructor deletes this rank's file if no manifest can name it. A
/// manifest may name the file from the time when publish() sends its size to rank 0 until rank 0
/// reports that it has not written the manifest. A forked child deletes nothing.
class Save {
 public:
  /// Checks that all ranks pass the same arguments, creates and locks the folder, and hashes the
  /// parameters. Collective. Errors: the same as muonrt_optimizer_save(). All ranks throw the same
  /// error, even if an allocation fails on only one rank.
  Save(Optimizer& optimizer, const std::string& folder, const SaveSettings& settings, Files& files);
  ~Save();
  Save(const Save&) = delete;
  Save& operator=(const Save&) = delete;

  /// Returns the shards that this rank writes.
  std::vector<StateShard> shards(const Optimizer& optimizer) const;
  /// Writes this rank's file. Uses neither the communicator nor the optimizer.
  void write(const std::vector<StateShard>& shards, DeviceCopy& copy);
  /// Publishes this save as the newest checkpoint, unless a rank passes an error from its write().
  /// Collective. All ranks throw the same error: IO, or the error that a rank passes.
  void publish(const std::optional<Error>& error);

 private:
  /// The values that each rank sends to all others.
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
  std::string id_;    // part of the names of all files of this checkpoint
  std::string name_;  // name of this rank's file
  std::string path_;  // path of this rank's file
  /// For each parameter, true if it equals its rounded master weights.
  std::vector<bool> in_masters_;
  Manifest manifest_;  // the manifest that publish() writes, on rank 0
  ManifestFile own_file_;
  bool may_be_named_ = false;         // true if a manifest may name own_file_
  std::vector<RankFile> rank_files_;  // indexed by rank
  FileLock lock_;                     // the lock of the folder, on rank 0
};

}  // namespace muonrt
