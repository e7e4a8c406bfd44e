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

/// The pieces of a checkpoint, and what of them a rank needs. Files are opened when what is needed
/// is not in those that are open: the tables of all, on every rank, are much where ranks are many.
class StateSources {
 public:
  /// @param manifest  stays where it is. @param rank  of `world`: so many ranks read, each from the
  ///     files of its like on.
  explicit StateSources(std::string folder, const Manifest& manifest, int rank = 0, int world = 1);
  /// Of those of its files that are open. Errors: CORRUPT, naming file and tensor.
  StateSources(std::vector<std::unique_ptr<ShardFile>> files, const Manifest& manifest);

  /// Those that are open.
  const std::vector<std::unique_ptr<ShardFile>>& files() const { return files_; }
  /// Elements of the whole tensor; of NorMuon's, lines. Of what the manifest names.
  int64_t numel(const std::string& param, int32_t kind);
  /// The same, once the files have at least that many: what holds all of them takes no more memory
  /// than the files have bytes. Errors: CORRUPT. @param what  names the tensor in errors.
  int64_t numel_in_files(const std::string& param, int32_t kind, const std::string& what);
  /// Where an element lies: "FILE: byte 17", with " and " between several; "no file" in none of
  /// those that are open.
  std::string where(const std::string& param, int32_t kind, int64_t element) const;

  /// Calls `take(first, element, bytes)` for stretches of the extent, each once: those from its
  /// element `first` on, which is element `element` of the whole tensor.
  /// @param what  names it in errors. Errors: CORRUPT where elements are missing or there twice, IO
  ///     and CORRUPT naming a file, and as ShardFile::elements.
  using Take =
      std::function<void(int64_t first, int64_t element, std::span<const unsigned char> bytes)>;
  void read(const std::string& param, int32_t kind, const Extent& extent, const std::string& what,
            const Take& take);
  /// What was read is checked again when it is next read.
  void forget_checks();

 private:
  struct Source {
    ShardFile* file;
    const StoredShard* shard;
  };
  struct Tensor {
    int64_t numel = 0;  // of NorMuon 0 until a piece has told
    std::vector<Source> sources = {};
  };
  /// Of which of its elements something was taken, and how many.
  struct Taken {
    std::vector<std::pair<int64_t, int64_t>> stretches;  // first, end
    int64_t count = 0;
  };
  explicit StateSources(const Manifest& manifest);
  void add(std::unique_ptr<ShardFile> file);
  void open_next();
  Tensor& at(const std::string& param, int32_t kind);
  /// Of those of which something is known.
  const Tensor* find(const std::string& param, int32_t kind) const;
  void take_from(const Source& source, const Extent& extent, const Take& take, Taken& taken);

  std::string folder_;
  std::unordered_map<std::string_view, const ManifestParam*> params_;  // by name
  std::vector<const ManifestFile*> unopened_;                          // the next one last
  std::vector<std::unique_ptr<ShardFile>> files_;
  std::map<std::pair<std::string, int32_t>, Tensor> tensors_;  // that were asked for, or lie here
  int64_t resident_ = 0;  // bytes that were read since memory was last given back
};

}  // namespace muonrt
