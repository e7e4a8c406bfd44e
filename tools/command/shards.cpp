#include "command/shards.hpp"

#include <fmt/format.h>

#include <stdexcept>

#include "show/table.hpp"

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

std::string sha256_of(const std::string& text) {
  Sha256 sum;
  sum.update(text.data(), text.size());
  return hex(sum.digest());
}

ShardWriter::ShardWriter(std::string folder, std::string name, std::vector<Shard> shards, bool sums)
    : folder_(std::move(folder)), name_(std::move(name)), shards_(std::move(shards)), sums_(sums) {}

void ShardWriter::open(const std::string& name) {
  file_ = std::make_unique<OutFile>(files_, folder_ + "/" + name + ".tmp");
  bytes_ = 0;
  sum_ = Sha256();
}

void ShardWriter::append(const void* data, int64_t bytes) {
  if (bytes == 0) return;
  file_->write(data, bytes, bytes_);
  if (sums_) sum_.update(data, static_cast<size_t>(bytes));
  bytes_ += bytes;
}

void ShardWriter::close(const std::string& name, int64_t tensors, bool sums) {
  file_->finish();
  file_->publish(folder_ + "/" + name);
  written_.push_back({name, tensors, bytes_, sums ? hex(sum_.digest()) : ""});
  file_.reset();
}

void ShardWriter::finish_last() {
  if (!file_) return;
  if (left_ != 0) throw std::logic_error(folder_ + ": a tensor was left out");
  const Shard& shard = shards_[written_.size()];
  close(shard.name, std::ssize(shard.entries), sums_);
}

void ShardWriter::next() {
  finish_last();
  if (written_.size() == shards_.size()) throw std::logic_error(folder_ + ": a tensor too many");
  Shard& shard = shards_[written_.size()];
  left_ = shard.entries.size();
  const std::string header =
      tensor_header(shard.entries, shard.metadata, folder_ + "/" + shard.name);
  open(shard.name);
  append(header.data(), std::ssize(header));
}

void ShardWriter::add(const void* data, int64_t bytes) {
  while (left_ == 0) next();
  const Shard& shard = shards_[written_.size()];
  if (shard.entries[shard.entries.size() - left_].bytes() != bytes)
    throw std::logic_error(shard.name + ": the tensor has another size than the next entry");
  append(data, bytes);
  --left_;
}

void ShardWriter::finish() {
  finish_last();
  while (written_.size() < shards_.size()) {  // the remaining files have no tensors
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
  const std::string text =
      json_object({{"metadata", json_object({{"total_size", std::to_string(total)}})},
                   {"weight_map", json_object(map)}}) +
      "\n";
  const std::string name = name_ + ".safetensors.index.json";
  open(name);
  append(text.data(), std::ssize(text));
  close(name, std::ssize(map), /*sums=*/false);
}

}  // namespace muonrt::tool
