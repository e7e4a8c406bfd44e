#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "state/tensor_file.hpp"

// CRC-32C in the metadata of a safetensors file: eight digits for each block of its data, in
// `crc32c`.

namespace muonrt {

/// What is checked as one: so many bytes of a file's data.
constexpr int64_t kBlockBytes = 1 << 20;

/// Data on its way into a file, in portions of any size.
class BlockSums {
 public:
  void add(std::span<const unsigned char> data);
  /// The checksums of all blocks, the last perhaps short.
  std::string digits() const;
  /// As many zeros as the checksums of so many bytes have digits.
  static std::string zeros(int64_t bytes);

 private:
  std::string full_;  // of blocks
  uint32_t sum_ = 0;  // of the last, which is not
  int64_t bytes_ = 0;
};

/// The data of a file, each block of which is checked when it is first asked for.
class CheckedBlocks {
 public:
  /// @param file  lives longer. Errors: CORRUPT where `crc32c` is not there for each block.
  explicit CheckedBlocks(const TensorFile& file);

  int64_t count() const { return std::ssize(checked_); }
  /// What is wrong with a block: its bytes and checksums. Empty where nothing is.
  std::string problem_of(int64_t block);
  /// Bytes [begin, end). Errors: CORRUPT, naming file, tensor and block.
  void check(int64_t begin, int64_t end, const std::string& tensor);
  /// What was checked is checked again when it is next asked for.
  void forget() { checked_.assign(checked_.size(), false); }

 private:
  const TensorFile& file_;
  std::vector<bool> checked_;
};

}  // namespace muonrt
