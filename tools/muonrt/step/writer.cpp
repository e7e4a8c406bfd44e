#include "muonrt/step/writer.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
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
    : path_(std::move(path)),
      temporary_(path_ + ".tmp." + std::to_string(getpid())),
      entries_(std::move(entries)),
      inside_(std::make_unique<Inside>()) {
  file_ = std::fopen(temporary_.c_str(), "wb");
  if (!file_) {
    const int reason = errno;
    temporary_.clear();
    errno = reason;
    fail("cannot be written");
  }
  const std::string header = header_of(entries_, metadata);
  unsigned char length[8];
  for (size_t i = 0; i < 8; ++i) {
    length[i] = static_cast<unsigned char>(uint64_t{header.size()} >> (8 * i));
  }
  put(length, 8);
  put(header.data(), header.size());
}

TensorWriter::~TensorWriter() {
  if (file_) std::fclose(file_);
  if (!temporary_.empty()) std::remove(temporary_.c_str());
}

void TensorWriter::fail(const char* what) const {
  throw std::runtime_error(path_ + ": " + what + ": " + std::strerror(errno));
}

void TensorWriter::put(const void* data, size_t bytes) {
  if (bytes > 0 && std::fwrite(data, 1, bytes, file_) != bytes) fail("cannot be written");
  inside_->sha.update(data, bytes);
}

void TensorWriter::add(const void* data, int64_t bytes) {
  if (next_ >= entries_.size() || entries_[next_].bytes() != bytes) {
    throw std::runtime_error(path_ + ": internal: another tensor belongs here");
  }
  ++next_;
  put(data, static_cast<size_t>(bytes));
}

std::string TensorWriter::finish() {
  if (next_ != entries_.size()) {
    throw std::runtime_error(path_ + ": internal: a tensor was left out");
  }
  if (std::fflush(file_) != 0 || fsync(fileno(file_)) != 0) fail("cannot be written");
  std::FILE* file = file_;
  file_ = nullptr;
  if (std::fclose(file) != 0) fail("cannot be written");
  return hex(inside_->sha.digest());
}

void TensorWriter::publish() {
  if (file_ || temporary_.empty()) {
    throw std::runtime_error(path_ + ": internal: published before it is whole, or twice");
  }
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot be written");
  temporary_.clear();
}

void require_writable(const std::string& path) {
  if (std::filesystem::is_directory(path)) {
    throw std::runtime_error(path + ": is a folder; give the name of a file");
  }
  const std::string probe = path + ".tmp." + std::to_string(getpid());
  std::FILE* file = std::fopen(probe.c_str(), "wb");
  if (!file) throw std::runtime_error(path + ": cannot be written: " + std::strerror(errno));
  std::fclose(file);
  std::remove(probe.c_str());
}

}  // namespace muonrt::tool
