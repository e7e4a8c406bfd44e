#include "state/checksums.hpp"

#include <algorithm>

#include "base/checked.hpp"
#include "base/crc32c.hpp"
#include "base/error.hpp"
#include "state/digits.hpp"

namespace muonrt {

namespace {

constexpr size_t kDigits = 8;  // digits of one checksum

/// Returns the checksums from the metadata of a file.
const std::string& sums_of(const TensorFile& file, size_t count) {
  const auto found = file.table().metadata.find("crc32c");
  MUONRT_REQUIRE(found != file.table().metadata.end() && found->second.size() == count * kDigits,
                 Status::kCorrupt, file.path(), ": the metadata has no crc32c of ", count * kDigits,
                 " digits; load another checkpoint");
  return found->second;
}

size_t blocks_of(int64_t bytes) { return static_cast<size_t>(ceil_div(bytes, kBlockBytes)); }

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
  sums_of(file, checked_.size());
}

std::string CheckedBlocks::problem_of(int64_t number) {
  const auto block = static_cast<size_t>(number);
  if (checked_[block]) return "";
  const int64_t at = number * kBlockBytes;
  const int64_t bytes = std::min(kBlockBytes, std::ssize(file_.data()) - at);
  const std::string found = sum_of(file_.data().data() + at, static_cast<size_t>(bytes));
  const std::string stored = sums_of(file_, checked_.size()).substr(block * kDigits, kDigits);
  if (found != stored)
    return cat("bytes ", at, " to ", at + bytes, " of the data have the checksum ", found,
               ", but the header has ", stored);
  checked_[block] = true;
  return "";
}

void CheckedBlocks::check(int64_t begin, int64_t end, const std::string& tensor) {
  for (int64_t b = begin / kBlockBytes; b * kBlockBytes < end; ++b) {
    const std::string problem = problem_of(b);
    MUONRT_REQUIRE(problem.empty(), Status::kCorrupt, file_.path(), ": tensor ", in_quotes(tensor),
                   ": ", problem, "; load another checkpoint");
  }
}

}  // namespace muonrt
