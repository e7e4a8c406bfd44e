#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muonrt::train {

/// The text to learn and its source.
struct Text {
  std::string name;  // "King James Version (bible-kjv)", or a path
  std::vector<uint8_t> bytes;
};

/// Reads `path`. If it is empty, uses the King James text from Debian's `bible` reader, or a
/// license text of Debian if the reader is missing. Blocking: starts one process (`bible`) when
/// `path` is empty; once per program, not per thread. Throws std::runtime_error if the file cannot
/// be read, or if both texts are missing.
Text load_text(const std::string& path);

/// "King James Version (bible-kjv), 4,404,412 bytes".
std::string describe(const Text& text);

/// A 64-bit hash of the bytes (FNV-1a), which the ranks compare.
uint64_t fingerprint(const Text& text);

/// The first nine tenths of a text to train on, the rest to validate on. Holds a copy.
/// Sequences are windows of context + 1 bytes; input is the first `context`, targets the last.
class Corpus {
 public:
  /// Errors: std::runtime_error if either part is shorter than one window.
  Corpus(Text text, int64_t context);

  const Text& text() const { return text_; }
  int64_t validation_bytes() const { return size() - train_bytes_; }
  int64_t window() const { return window_; }

  /// The sequences [first, first + count) of the global batch of `step`, one after another: random
  /// windows of the training part. Each depends only on seed, step and its number, so a global
  /// batch is the same for any number of ranks.
  std::vector<uint8_t> train_batch(uint64_t seed, int64_t step, int64_t first, int64_t count) const;

  /// The windows [first, first + count) of `total`, which are spread evenly over the validation
  /// part, one after another.
  std::vector<uint8_t> validation_batch(int64_t first, int64_t count, int64_t total) const;

 private:
  int64_t size() const { return static_cast<int64_t>(text_.bytes.size()); }

  Text text_;
  int64_t window_;
  int64_t train_bytes_;
};

}  // namespace muonrt::train
