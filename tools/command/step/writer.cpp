#include "command/step/writer.hpp"

#include <stdexcept>

#include "base/sha256.hpp"
#include "state/checksums.hpp"

namespace muonrt::tool {

struct TensorWriter::Inside {
  Sums sums;
  BlockSums blocks;
  Sha256 sha;
  std::string digest = {};
};

TensorWriter::TensorWriter(std::string path, std::vector<TensorEntry> entries,
                           std::map<std::string, std::string> metadata, Sums sums)
    : file_(std::move(path)),
      entries_(std::move(entries)),
      metadata_(std::move(metadata)),
      inside_(std::make_unique<Inside>(Inside{sums, {}, {}})) {
  if (sums == Sums::in_metadata) {
    int64_t bytes = 0;
    for (const TensorEntry& e : entries_) bytes += e.bytes();
    metadata_["crc32c"] = BlockSums::zeros(bytes);
    metadata_["header_crc32c"] = "00000000";
  }
  const std::string header = tensor_header(entries_, metadata_, file_.path());
  file_.write(header.data(), header.size());
  if (sums == Sums::sha256) inside_->sha.update(header.data(), header.size());
}

TensorWriter::~TensorWriter() = default;

void TensorWriter::fail_inside(const char* what) const {
  throw std::runtime_error(file_.path() + ": internal: " + what);
}

void TensorWriter::add(const void* data, int64_t bytes) {
  if (next_ >= entries_.size() || entries_[next_].bytes() != bytes) {
    fail_inside("another tensor belongs here");
  }
  ++next_;
  const auto size = static_cast<size_t>(bytes);
  file_.write(data, size);
  if (inside_->sums == Sums::sha256) {
    inside_->sha.update(data, size);
  } else if (inside_->sums == Sums::in_metadata) {
    inside_->blocks.add({static_cast<const unsigned char*>(data), size});
  }
}

void TensorWriter::finish() {
  if (next_ != entries_.size()) fail_inside("a tensor was left out");
  if (inside_->sums == Sums::sha256) {
    inside_->digest = hex(inside_->sha.digest());
  } else if (inside_->sums == Sums::in_metadata) {
    metadata_["crc32c"] = inside_->blocks.digits();
    std::string header = tensor_header(entries_, metadata_, file_.path());
    seal_header(header);
    file_.rewrite(header.data(), header.size());
  }
  file_.finish();
}

std::string TensorWriter::sha256() const { return inside_->digest; }

}  // namespace muonrt::tool
