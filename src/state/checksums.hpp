#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "state/tensor_file.hpp"

// CRC-32C checksums in the metadata of a safetensors file. The entry `crc32c` has eight digits for
// each block of the data.

namespace muonrt {

/// The size of a block for which a checksum is computed.
constexpr int64_t kBlockBytes = 1 << 20;

/// Computes the checksums of data that the caller passes in portions of any size.
class BlockSums {
 public:
  void add(std::span<const unsigned char> data);
  /// Returns the checksums of all blocks. The last block may be shorter than kBlockBytes.
  std::string digits() const;
  /// Returns zeros instead of the checksums of `bytes` bytes, with the same number of digits.
  static std::string zeros(int64_t bytes);

 private:
  std::string full_;  // digits of the full blocks
  uint32_t sum_ = 0;  // checksum of the last block, which is not full yet
  int64_t bytes_ = 0;
};

/// Checks each block of a file's data when it is needed for the first time.
class CheckedBlocks {
 public:
  /// @param file  It must outlive this object.
  /// Errors: CORRUPT if `crc32c` does not contain one checksum for each block.
  explicit CheckedBlocks(const TensorFile& file);

  int64_t count() const { return std::ssize(checked_); }
  /// Describes what is wrong with a block, with its bytes and checksums. Returns an empty string if
  /// the block is valid.
  std::string problem_of(int64_t block);
  /// Checks the blocks that contain bytes [begin, end). Errors: CORRUPT, with the file, the tensor
  /// and the block.
  void check(int64_t begin, int64_t end, const std::string& tensor);
  /// Makes later calls check all blocks again.
  void forget() { checked_.assign(checked_.size(), false); }

 private:
  const TensorFile& file_;
  std::vector<bool> checked_;
};

}  // namespace muonrt
