#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muonrt::train {

/// The training text and its source.
struct Text {
  std::string name;  // such as "King James Version (bible-kjv)", or a path
  std::vector<uint8_t> bytes;
};

/// Reads the file `path`. If `path` is empty, uses the King James text from Debian's `bible` reader
/// or, if this reader is missing, a license text of Debian. Call this function once per program and
/// not in each thread, because it may start the process `bible` and wait for it. Throws
/// std::runtime_error if the file cannot be read, or if both texts are missing.
Text load_text(const std::string& path);

/// Returns a description such as "King James Version (bible-kjv), 4,404,412 bytes".
std::string describe(const Text& text);

/// Returns a 64-bit hash of the bytes (FNV-1a), which the ranks compare.
uint64_t fingerprint(const Text& text);

/// A text whose first nine tenths are used for training, and whose rest is used for validation. A
/// sequence is a window of context + 1 bytes: its first `context` bytes are the input, and its last
/// `context` bytes are the targets.
class Corpus {
 public:
  /// Throws std::runtime_error if one of the parts is shorter than a window.
  Corpus(Text text, int64_t context);

  const Text& text() const { return text_; }
  int64_t validation_bytes() const { return size() - train_bytes_; }
  int64_t window() const { return window_; }

  /// Returns sequences `first` to `first + count - 1` of the global batch of `step`, concatenated.
  /// They are random windows of the training part. Each window depends only on seed, step and its
  /// index, so a global batch is the same for any number of ranks.
  std::vector<uint8_t> train_batch(uint64_t seed, int64_t step, int64_t first, int64_t count) const;

  /// Returns windows `first` to `first + count - 1` of `total` windows, concatenated. The `total`
  /// windows are spread evenly over the validation part.
  std::vector<uint8_t> validation_batch(int64_t first, int64_t count, int64_t total) const;

 private:
  int64_t size() const { return static_cast<int64_t>(text_.bytes.size()); }

  Text text_;
  int64_t window_;
  int64_t train_bytes_;
};

}  // namespace muonrt::train
