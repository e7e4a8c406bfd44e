#pragma once

#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "state/manifest.hpp"

namespace muonrt {

/// Reads the shards of a checkpoint. Opens a further file only if the open files do not contain the
/// needed elements, because the tables of all files of a large job would need a lot of memory on
/// every rank.
class StateSources {
 public:
  /// @param manifest  It must outlive this object.
  /// @param rank      Number of this rank among the `world` ranks that read. The rank first opens
  ///     the file that the corresponding rank of the save has written.
  explicit StateSources(std::string folder, const Manifest& manifest, int rank = 0, int world = 1);
  /// Uses only the given open files. Errors: CORRUPT, with the file and the tensor.
  StateSources(std::vector<std::unique_ptr<ShardFile>> files, const Manifest& manifest);

  /// Returns the open files.
  const std::vector<std::unique_ptr<ShardFile>>& files() const { return files_; }
  /// Returns the number of elements of the whole tensor (for NorMuon, the number of neurons). The
  /// tensor must be in the manifest.
  int64_t numel(const std::string& param, int32_t kind);
  /// Like numel(), but checks that the files contain at least this many elements. The size of the
  /// files therefore limits the size of a buffer for the whole tensor. Errors: CORRUPT.
  /// @param what  Name of the tensor for error messages.
  int64_t numel_in_files(const std::string& param, int32_t kind, const std::string& what);
  /// Returns the number of shards of the tensor in the open files.
  int64_t shards(const std::string& param, int32_t kind) const;
  /// Returns where an element is stored, such as "FILE: byte 17". If it is stored more than once,
  /// the places are joined with " and ". Returns "no file" if no open file contains the element.
  std::string where(const std::string& param, int32_t kind, int64_t element) const;

  /// Reads an extent of a tensor. Calls `take(first, element, bytes)` once for each stretch of the
  /// extent. The stretch's first element has the index `first` in the extent and the index
  /// `element` in the whole tensor.
  /// @param what  Name of the tensor for error messages.
  /// Errors: CORRUPT if elements are missing or stored twice; IO; any error of
  /// ShardFile::elements().
  using Take =
      std::function<void(int64_t first, int64_t element, std::span<const unsigned char> bytes)>;
  void read(const std::string& param, int32_t kind, const Extent& extent, const std::string& what,
            const Take& take);
  /// Makes later reads check all blocks again.
  void forget_checks();

 private:
  struct Source {
    ShardFile* file;
    const StoredShard* shard;
  };
  struct Tensor {
    int64_t numel = 0;  // for NorMuon, 0 until a shard has been read
    std::vector<Source> sources = {};
  };
  /// The elements of an extent that were passed to `take` so far.
  struct Taken {
    std::vector<std::pair<int64_t, int64_t>> stretches;  // pairs (first, end)
    int64_t count = 0;
  };
  explicit StateSources(const Manifest& manifest);
  void add(std::unique_ptr<ShardFile> file);
  void open_next();
  Tensor& at(const std::string& param, int32_t kind);
  /// Returns null if no call has requested the tensor and no open file contains it.
  const Tensor* find(const std::string& param, int32_t kind) const;
  void take_from(const Source& source, const Extent& extent, const Take& take, Taken& taken);

  std::string folder_;
  std::unordered_map<std::string_view, const ManifestParam*> params_;  // keyed by name
  std::vector<const ManifestFile*> unopened_;  // the last entry is opened next
  std::vector<std::unique_ptr<ShardFile>> files_;
  std::map<std::pair<std::string, int32_t>, Tensor> tensors_;  // keys are (parameter, kind)
  int64_t resident_ = 0;  // bytes that were read since pages were last released
};

}  // namespace muonrt
