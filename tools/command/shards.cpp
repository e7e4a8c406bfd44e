#include "command/shards.hpp"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.hpp"
#include "show/table.hpp"
#include "state/files.hpp"

namespace muonrt::tool {

namespace fs = std::filesystem;

namespace {

constexpr const char* kTensors = ".safetensors";
constexpr const char* kIndex = ".safetensors.index.json";

std::string name_of(const std::string& path) { return fs::path(path).filename().string(); }

}  // namespace

std::vector<Shard> cut_into_shards(const std::string& folder, const std::string& name,
                                   const std::vector<TensorEntry>& entries,
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
    out[i].path = fmt::format("{}/{}-{:05}-of-{:05}{}", folder, name, i + 1, out.size(), kTensors);
    out[i].metadata = metadata;
  }
  return out;
}

std::string index_path(const std::string& folder, const std::string& name) {
  return folder + "/" + name + kIndex;
}

void require_no_model(const std::string& option, const std::string& folder,
                      const std::set<std::string>& replaced) {
  Files files;
  files.make_folder(folder);
  for (const std::string& name : files.list(folder))
    MUONRT_REQUIRE(
        (!name.ends_with(kTensors) && !name.ends_with(kIndex)) || replaced.contains(name), kBad,
        option, ": ", folder, " has ", in_quotes(name),
        " in it, and is left as it is; give a new folder");
}

ShardWriter::ShardWriter(std::vector<Shard> shards, std::string index, Sums sums)
    : shards_(std::move(shards)), index_path_(std::move(index)), sums_(sums) {}

void ShardWriter::finish_last() {
  if (writers_.empty()) return;
  TensorWriter& last = *writers_.back();
  last.finish();
  const auto bytes = static_cast<int64_t>(fs::file_size(last.file().temporary()));
  const Shard& shard = shards_[writers_.size() - 1];
  written_.push_back({name_of(shard.path), std::ssize(shard.entries), bytes, last.sha256()});
}

void ShardWriter::next() {
  finish_last();
  MUONRT_CHECK_INTERNAL(writers_.size() < shards_.size(), "all tensors are written");
  const Shard& shard = shards_[writers_.size()];
  left_ = shard.entries.size();
  writers_.push_back(
      std::make_unique<TensorWriter>(shard.path, shard.entries, shard.metadata, sums_));
}

void ShardWriter::add(const void* data, int64_t bytes) {
  while (left_ == 0) next();
  writers_.back()->add(data, bytes);
  --left_;
}

void ShardWriter::finish() {
  while (writers_.size() < shards_.size()) next();  // what is left has no tensors, or it throws
  finish_last();
  if (!index_path_.empty()) write_index();
}

void ShardWriter::write_index() {
  int64_t total = 0;
  std::vector<std::pair<std::string, std::string>> map;
  for (const Shard& shard : shards_) {
    for (const TensorEntry& entry : shard.entries) {
      total += entry.bytes();
      map.emplace_back(entry.name, json_text(name_of(shard.path)));
    }
  }
  const std::string text = json_object({{"metadata", json_object({{"total_size", cat(total)}})},
                                        {"weight_map", json_object(map)}}) +
                           "\n";
  index_ = std::make_unique<OutputFile>(index_path_);
  index_->write(text.data(), text.size());
  index_->finish();
  written_.push_back({name_of(index_path_), std::ssize(map), std::ssize(text)});
}

std::vector<OutputFile*> ShardWriter::files() {
  std::vector<OutputFile*> out;
  for (const auto& writer : writers_) out.push_back(&writer->file());
  if (index_) out.push_back(index_.get());
  return out;
}

}  // namespace muonrt::tool
