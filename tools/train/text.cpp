#include "train/text.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>

#include "show/table.hpp"
#include "train/random.hpp"

namespace muonrt::train {
namespace {

namespace fs = std::filesystem;

// Debian's Bible reader prints all verses, one on each line. The option `-f` disables line wrapping
// and paging.
constexpr const char* kBibleCommand = "bible -f 'gen1:1-rev22:21' 2>/dev/null </dev/null";
constexpr size_t kBibleLeast = 4'000'000;  // version 4.38 prints 4,404,412 bytes
constexpr size_t kBibleMost = 5'000'000;
// This file exists on every Debian system.
constexpr const char* kLicence = "/usr/share/common-licenses/GPL-3";

struct ClosePipe {
  void operator()(std::FILE* pipe) const { pclose(pipe); }
};

std::vector<uint8_t> output_of(const char* command) {
  std::vector<uint8_t> bytes;
  const std::unique_ptr<std::FILE, ClosePipe> pipe(popen(command, "r"));
  if (!pipe) return bytes;
  uint8_t block[65536];
  for (size_t got; (got = std::fread(block, 1, sizeof block, pipe.get())) > 0;) {
    bytes.insert(bytes.end(), block, block + got);
  }
  return bytes;
}

Text read_file(const std::string& path) {
  std::error_code error;
  std::ifstream file(path, std::ios::binary);
  const std::istreambuf_iterator<char> begin(file), end;
  if (!fs::is_regular_file(path, error) || !file) {
    throw std::runtime_error("data file '" + path +
                             "' does not exist or cannot be read; pass a text file");
  }
  return {path, {begin, end}};
}

}  // namespace

Text load_text(const std::string& path) {
  if (!path.empty()) return read_file(path);
  Text bible{"King James Version (bible-kjv)", output_of(kBibleCommand)};
  if (bible.bytes.size() >= kBibleLeast && bible.bytes.size() <= kBibleMost) return bible;
  std::error_code error;
  if (fs::is_regular_file(kLicence, error))
    return {"GNU GPL 3 (because bible-kjv is not installed)", read_file(kLicence).bytes};
  throw std::runtime_error(
      "there is no text to train on, because the `bible` reader is not installed; install "
      "bible-kjv, "
      "or pass a file with --data");
}

std::string describe(const Text& text) {
  return text.name + ", " + tool::cell::grouped(std::ssize(text.bytes)).text + " bytes";
}

uint64_t fingerprint(const Text& text) {
  uint64_t hash = 14695981039346656037u;
  for (const uint8_t byte : text.bytes) hash = (hash ^ byte) * 1099511628211u;
  return hash;
}

Corpus::Corpus(Text text, int64_t context)
    : text_(std::move(text)), window_(context + 1), train_bytes_(size() / 10 * 9) {
  if (context < 1) throw std::runtime_error("context must be at least 1");
  if (std::min(train_bytes_, validation_bytes()) < window_) {
    throw std::runtime_error(
        "text '" + text_.name + "' has only " + tool::cell::grouped(size()).text +
        " bytes, but a tenth of it, for validation, must have at least " + std::to_string(window_) +
        "; pass a text of at least " + tool::cell::grouped(10 * window_).text + " bytes");
  }
}

std::vector<uint8_t> Corpus::train_batch(uint64_t seed, int64_t step, int64_t first,
                                         int64_t count) const {
  const auto places = static_cast<uint64_t>(train_bytes_ - window_ + 1);
  std::vector<uint8_t> batch(static_cast<size_t>(count * window_));
  for (int64_t i = 0; i < count; ++i) {
    const auto [words] =
        draw(seed, Stream::kBatch, static_cast<uint32_t>(step), static_cast<uint64_t>(first + i));
    const uint64_t random = (uint64_t{words[0]} << 32) | words[1];
    std::copy_n(text_.bytes.data() + random % places, window_, batch.data() + i * window_);
  }
  return batch;
}

std::vector<uint8_t> Corpus::validation_batch(int64_t first, int64_t count, int64_t total) const {
  const int64_t places = validation_bytes() - window_;
  std::vector<uint8_t> batch(static_cast<size_t>(count * window_));
  for (int64_t i = 0; i < count; ++i) {
    const int64_t at = total > 1 ? places * (first + i) / (total - 1) : 0;
    std::copy_n(text_.bytes.data() + train_bytes_ + at, window_, batch.data() + i * window_);
  }
  return batch;
}

}  // namespace muonrt::train
