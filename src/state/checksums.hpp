#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "state/tensor_file.hpp"

// CRC-32C checksums in the metadata of a safetensors file: `crc32c` has eight digits for each block
// of the data.

namespace muonrt {

/// Bytes of a checksum block.
constexpr int64_t kBlockBytes = 1 << 20;

/// Computes the checksums of data that is added in portions of any size.
class BlockSums {
 public:
  void add(std::span<const unsigned char> data);
  /// Returns the checksums of all blocks; the last block may be shorter.
  std::string digits() const;
  /// Returns zeros, as many as the checksums of this many bytes have digits.
  static std::string zeros(int64_t bytes);

 private:
  std::string full_;  // digits of the full blocks
  uint32_t sum_ = 0;  // of the last block, which is not full yet
  int64_t bytes_ = 0;
};

/// Checks each block of a file's data when it is first needed.
class CheckedBlocks {
 public:
  /// @param file  must outlive this object. Errors: CORRUPT if `crc32c` does not have a checksum
  /// for
  ///     each block.
  explicit CheckedBlocks(const TensorFile& file);

  int64_t count() const { return std::ssize(checked_); }
  /// Returns the problem of a block, with its bytes and checksums, or an empty string.
  std::string problem_of(int64_t block);
  /// Checks bytes [begin, end). Errors: CORRUPT, with file, tensor and block.
  void check(int64_t begin, int64_t end, const std::string& tensor);
  /// Makes later calls check all blocks again.
  void forget() { checked_.assign(checked_.size(), false); }

 private:
  const TensorFile& file_;
  std::vector<bool> checked_;
};

}  // namespace muonrt
