#include "command/shards.hpp"

#include <fmt/format.h>

#include "base/error.hpp"
#include "base/sha256.hpp"
#include "show/table.hpp"
#include "state/files.hpp"

namespace muonrt::tool {

std::vector<Shard> cut_into_shards(const std::string& name, const std::vector<TensorEntry>& entries,
                                   const std::map<std::string, std::string>& metadata,
                                   int64_t most) {
  std::vector<Shard> out(1);
  int64_t bytes = 0;
  for (const TensorEntry& entry : entries) {
    if (!out.back().entries.empty() && bytes + entry.bytes() > most) {
      out.emplace_back();
      bytes = 0;
    }
    bytes += entry.bytes();
    out.back().entries.push_back(entry);
  }
  for (size_t i = 0; i < out.size(); ++i) {
    out[i].name = fmt::format("{}-{:05}-of-{:05}.safetensors", name, i + 1, out.size());
    out[i].metadata = metadata;
  }
  return out;
}

/// A file that is written from its begin to its end.
class ShardWriter::File {
 public:
  File(std::string path, bool sums)
      : path_(std::move(path)), file_(files_, path_ + ".tmp"), sums_(sums) {}

  void add(const void* data, int64_t bytes) {
    if (bytes > 0) file_.write(data, bytes, size_);
    if (sums_ && bytes > 0) sha_.update(data, static_cast<size_t>(bytes));
    size_ += bytes;
  }
  void finish() {
    file_.finish();
    file_.publish(path_);
  }
  int64_t size() const { return size_; }
  std::string sha256() { return sums_ ? hex(sha_.digest()) : ""; }

 private:
  Files files_;
  std::string path_;
  OutFile file_;
  bool sums_;
  Sha256 sha_;
  int64_t size_ = 0;
};

ShardWriter::ShardWriter(std::string folder, std::string name, std::vector<Shard> shards, bool sums)
    : folder_(std::move(folder)), name_(std::move(name)), shards_(std::move(shards)), sums_(sums) {}

ShardWriter::~ShardWriter() = default;

void ShardWriter::finish_last() {
  if (!file_) return;
  MUONRT_CHECK_INTERNAL(left_ == 0, "a tensor was left out");
  file_->finish();
  const Shard& shard = shards_[written_.size()];
  written_.push_back({shard.name, std::ssize(shard.entries), file_->size(), file_->sha256()});
  file_.reset();
}

void ShardWriter::next() {
  finish_last();
  MUONRT_CHECK_INTERNAL(written_.size() < shards_.size(), "all tensors are written");
  Shard& shard = shards_[written_.size()];
  left_ = shard.entries.size();
  const std::string path = folder_ + "/" + shard.name;
  const std::string header = tensor_header(shard.entries, shard.metadata, path);
  file_ = std::make_unique<File>(path, sums_);
  file_->add(header.data(), std::ssize(header));
}

void ShardWriter::add(const void* data, int64_t bytes) {
  while (left_ == 0) next();
  const Shard& shard = shards_[written_.size()];
  MUONRT_CHECK_INTERNAL(shard.entries[shard.entries.size() - left_].bytes() == bytes,
                        "another tensor belongs here");
  file_->add(data, bytes);
  --left_;
}

void ShardWriter::finish() {
  finish_last();
  while (written_.size() < shards_.size()) {  // what is left has no tensors, or it throws
    next();
    finish_last();
  }
  write_index();
}

void ShardWriter::write_index() {
  int64_t total = 0;
  std::vector<std::pair<std::string, std::string>> map;
  for (const Shard& shard : shards_) {
    for (const TensorEntry& entry : shard.entries) {
      total += entry.bytes();
      map.emplace_back(entry.name, json_text(shard.name));
    }
  }
  const std::string text = json_object({{"metadata", json_object({{"total_size", cat(total)}})},
                                        {"weight_map", json_object(map)}}) +
                           "\n";
  const std::string name = name_ + ".safetensors.index.json";
  File index(folder_ + "/" + name, false);
  index.add(text.data(), std::ssize(text));
  index.finish();
  written_.push_back({name, std::ssize(map), std::ssize(text)});
}

}  // namespace muonrt::tool
