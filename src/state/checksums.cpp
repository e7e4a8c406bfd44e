#include "state/checksums.hpp"

#include <algorithm>

#include "base/checked.hpp"
#include "base/crc32c.hpp"
#include "base/error.hpp"
#include "state/digits.hpp"

namespace muonrt {

namespace {

constexpr size_t kDigits = 8;  // of a checksum
constexpr const char* kHeader = "header_crc32c";

/// The digits behind a key of the metadata of that file.
const std::string& sums_of(const TensorFile& file, const char* key, size_t count) {
  const auto found = file.table().metadata.find(key);
  MUONRT_REQUIRE(found != file.table().metadata.end() && found->second.size() == count * kDigits,
                 Status::kCorrupt, file.path(), ": its metadata have no ", key, " of ",
                 count * kDigits, " digits; it is damaged, load another");
  return found->second;
}

size_t blocks_of(int64_t bytes) { return static_cast<size_t>(ceil_div(bytes, kBlockBytes)); }

/// Where a header has the digits of its own checksum. (In a name the quotes would be escaped.)
size_t header_digits(const std::string& header) {
  const std::string key = cat("\"", kHeader, "\":\"");
  const size_t at = header.find(key);
  return at == header.npos ? at : at + key.size();
}

std::string sum_of(const void* data, size_t bytes) {
  return digits_of(crc32c(data, bytes), kDigits);
}

}  // namespace

void BlockSums::add(std::span<const unsigned char> data) {
  while (!data.empty()) {
    const auto room = static_cast<size_t>(kBlockBytes - bytes_ % kBlockBytes);
    const auto part = data.first(std::min(room, data.size()));
    sum_ = crc32c(part.data(), part.size(), sum_);
    bytes_ += std::ssize(part);
    data = data.subspan(part.size());
    if (part.size() < room) continue;
    full_ += digits_of(sum_, kDigits);
    sum_ = 0;
  }
}

std::string BlockSums::digits() const {
  return bytes_ % kBlockBytes == 0 ? full_ : full_ + digits_of(sum_, kDigits);
}

std::string BlockSums::zeros(int64_t bytes) { return std::string(blocks_of(bytes) * kDigits, '0'); }

CheckedBlocks::CheckedBlocks(const TensorFile& file)
    : file_(file), checked_(blocks_of(std::ssize(file.data()))) {
  sums_of(file, "crc32c", checked_.size());
}

std::string CheckedBlocks::problem_of(int64_t number) {
  const auto block = static_cast<size_t>(number);
  if (checked_[block]) return "";
  const int64_t at = number * kBlockBytes;
  const int64_t bytes = std::min(kBlockBytes, std::ssize(file_.data()) - at);
  const std::string found = sum_of(file_.data().data() + at, static_cast<size_t>(bytes));
  const std::string said =
      sums_of(file_, "crc32c", checked_.size()).substr(block * kDigits, kDigits);
  if (found != said)
    return cat("bytes ", at, " to ", at + bytes, " of the data have the checksum ", found,
               " (the header says ", said, ")");
  checked_[block] = true;
  return "";
}

void CheckedBlocks::check(int64_t begin, int64_t end, const std::string& tensor) {
  for (int64_t b = begin / kBlockBytes; b * kBlockBytes < end; ++b) {
    const std::string problem = problem_of(b);
    MUONRT_REQUIRE(problem.empty(), Status::kCorrupt, file_.path(), ": tensor ", in_quotes(tensor),
                   ": ", problem, "; it is damaged, load another");
  }
}

void seal_header(std::string& header) {
  header.replace(header_digits(header), kDigits, sum_of(header.data(), header.size()));
}

void check_sums(const TensorFile& file) {
  const std::string& said = sums_of(file, kHeader, 1);
  const auto bytes = file.header();
  std::string header(bytes.begin(), bytes.end());
  const size_t at = header_digits(header);
  if (at != header.npos) header.replace(at, kDigits, kDigits, '0');
  const std::string found = sum_of(header.data(), header.size());
  MUONRT_REQUIRE(found == said, Status::kCorrupt, file.path(), ": its header (bytes 0 to ",
                 header.size(), ") has the checksum ", found, ", but says ", said,
                 "; it is damaged, load another");
  CheckedBlocks blocks(file);
  for (const TensorEntry& e : file.table().entries) blocks.check(e.begin, e.end, e.name);
}

}  // namespace muonrt
