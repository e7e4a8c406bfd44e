#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "state/checksums.hpp"
#include "state/copy/device_copy.hpp"
#include "state/files.hpp"
#include "state/state_shards.hpp"
#include "state/tensor_file.hpp"

namespace muonrt {

/// A file of a checkpoint, as recorded in the manifest.
struct ManifestFile {
  std::string name;
  int64_t bytes = 0;           // 0 if there is no file, because the rank had nothing to write
  uint32_t header_crc32c = 0;  // checksum of all bytes before the data
};

/// Writes the elements of the shards that this rank must write. For each block of elements, calls
/// `see` with its bytes and with the index of its first element in the shard. The file appears in
/// `folder` as `name` only after it is complete and on disk.
ManifestFile write_shard_file(Files& files, const std::string& folder, const std::string& name,
                              const std::vector<StateShard>& shards, DeviceCopy& copy,
                              const std::function<void(const StateShard&, int64_t first,
                                                       std::span<const unsigned char>)>& see);

/// A state shard that is stored in a file.
struct StoredShard {
  std::string param;  // name of the parameter
  int32_t kind;
  Extent extent;
  const TensorEntry* entry;
};

/// Reads a file of state shards. Every byte is checked before it is returned.
class ShardFile {
 public:
  /// Opens the file and checks its header. Errors: IO or CORRUPT, with the name of the file.
  ShardFile(const std::string& folder, const ManifestFile& record);

  const std::string& path() const { return file_.path(); }
  const std::vector<StoredShard>& shards() const { return shards_; }
  /// Returns elements [first, first + count) of a shard. Errors: CORRUPT, with the file, the tensor
  /// and the bytes.
  std::span<const unsigned char> elements(const StoredShard& shard, int64_t first, int64_t count);
  /// Returns the number of blocks of kBlockBytes. The last block may be shorter.
  int64_t blocks() const { return blocks_->count(); }
  /// Describes what is wrong with a block, with its bytes and checksums. Returns an empty string if
  /// the block is valid.
  std::string problem_of(int64_t block) { return blocks_->problem_of(block); }
  /// Returns the offset, in the file, of the first byte of an element of the shard.
  int64_t byte_of(const StoredShard& shard, int64_t element) const {
    return std::ssize(file_.header()) + shard.entry->begin +
           element * element_bytes(shard.entry->dtype);
  }
  /// Allows the system to remove the file's pages from memory. Later reads load them again.
  void release_pages() const { file_.release_pages(); }
  /// Makes later reads check all blocks again.
  void forget_checks() { blocks_->forget(); }

 private:
  TensorFile file_;
  std::vector<StoredShard> shards_;
  std::optional<CheckedBlocks> blocks_;
};

}  // namespace muonrt
