#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "state/checksums.hpp"
#include "state/device_copy.hpp"
#include "state/files.hpp"
#include "state/state_shards.hpp"
#include "state/tensor_file.hpp"

namespace muonrt {

/// A file of a checkpoint, as its manifest names it.
struct ManifestFile {
  std::string name;
  int64_t bytes = 0;           // 0: the rank had nothing to write, and there is no file
  uint32_t header_crc32c = 0;  // of all in front of the data
};

/// Writes what this rank is to write, and calls `see` with every part of it on its way: the piece's
/// elements from `first` on.
/// @param folder  it appears there, under `name`, when it is whole and on disk.
ManifestFile write_shard_file(Files& files, const std::string& folder, const std::string& name,
                              const std::vector<StateShard>& shards, DeviceCopy& copy,
                              const std::function<void(const StateShard&, int64_t first,
                                                       std::span<const unsigned char>)>& see);

/// A piece that lies in a file.
struct StoredShard {
  std::string param;  // name
  int32_t kind;
  Extent extent;
  const TensorEntry* entry;
};

/// A file of pieces, each byte of which is checked before it is given out.
class ShardFile {
 public:
  /// Errors: IO, CORRUPT, naming the file.
  ShardFile(const std::string& folder, const ManifestFile& record);

  const std::string& path() const { return file_.path(); }
  const std::vector<StoredShard>& shards() const { return shards_; }
  /// Elements [first, first + count) of a piece. Errors: CORRUPT, naming file, tensor and bytes.
  std::span<const unsigned char> elements(const StoredShard& shard, int64_t first, int64_t count);
  /// Blocks of kBlockBytes that the data have; the last may be short.
  int64_t blocks() const { return blocks_->count(); }
  /// What is wrong with a block: its bytes and checksums. Empty where nothing is.
  std::string problem_of(int64_t block) { return blocks_->problem_of(block); }
  /// Of the file: the first byte of a piece's element.
  int64_t byte_of(const StoredShard& shard, int64_t element) const {
    return std::ssize(file_.header()) + shard.entry->begin +
           element * element_bytes(shard.entry->dtype);
  }
  /// What was read of it need not stay in memory; the next reader takes it from the file.
  void release_pages() const { file_.release_pages(); }
  /// What was checked is checked again when it is next given out.
  void forget_checks() { blocks_->forget(); }

 private:
  TensorFile file_;
  std::vector<StoredShard> shards_;
  std::optional<CheckedBlocks> blocks_;
};

}  // namespace muonrt
