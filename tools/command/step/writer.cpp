#include "command/step/writer.hpp"

#include <stdexcept>

#include "base/sha256.hpp"

namespace muonrt::tool {

struct TensorWriter::Inside {
  Sha256 sha;
};

TensorWriter::TensorWriter(std::string path, std::vector<TensorEntry> entries,
                           const std::map<std::string, std::string>& metadata)
    : file_(std::move(path)), entries_(std::move(entries)), inside_(std::make_unique<Inside>()) {
  const std::string header = tensor_header(entries_, metadata, file_.path());
  put(header.data(), header.size());
}

TensorWriter::~TensorWriter() = default;

void TensorWriter::fail_inside(const char* what) const {
  throw std::runtime_error(file_.path() + ": internal: " + what);
}

void TensorWriter::put(const void* data, size_t bytes) {
  file_.write(data, bytes);
  inside_->sha.update(data, bytes);
}

void TensorWriter::add(const void* data, int64_t bytes) {
  if (next_ >= entries_.size() || entries_[next_].bytes() != bytes) {
    fail_inside("another tensor belongs here");
  }
  ++next_;
  put(data, static_cast<size_t>(bytes));
}

std::string TensorWriter::finish() {
  if (next_ != entries_.size()) fail_inside("a tensor was left out");
  file_.finish();
  return hex(inside_->sha.digest());
}

}  // namespace muonrt::tool
