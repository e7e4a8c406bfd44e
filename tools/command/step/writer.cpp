#include "command/step/writer.hpp"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "base/sha256.hpp"

namespace muonrt::tool {

struct TensorWriter::Inside {
  Sha256 sha;
};

namespace {

std::string header_of(std::vector<TensorEntry>& entries,
                      const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!metadata.empty()) json["__metadata__"] = metadata;
  int64_t at = 0;
  std::string out = json.dump();
  out.pop_back();
  // Entry by entry: an ordered object looks every key up from its beginning.
  bool first = metadata.empty();
  for (TensorEntry& e : entries) {
    const int64_t bytes = e.bytes();
    e.begin = at;
    e.end = at += bytes;
    nlohmann::ordered_json entry;
    entry["dtype"] = e.dtype;
    entry["shape"] = e.shape;
    entry["data_offsets"] = {e.begin, e.end};
    out += (first ? "" : ",") + nlohmann::json(e.name).dump() + ":" + entry.dump();
    first = false;
  }
  out += "}";
  // Data begins at a multiple of eight bytes.
  while (out.size() % 8 != 0) out += ' ';
  return out;
}

}  // namespace

TensorWriter::TensorWriter(std::string path, std::vector<TensorEntry> entries,
                           const std::map<std::string, std::string>& metadata)
    : file_(std::move(path)), entries_(std::move(entries)), inside_(std::make_unique<Inside>()) {
  const std::string header = header_of(entries_, metadata);
  unsigned char length[8];
  for (size_t i = 0; i < 8; ++i) {
    length[i] = static_cast<unsigned char>(uint64_t{header.size()} >> (8 * i));
  }
  put(length, 8);
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
