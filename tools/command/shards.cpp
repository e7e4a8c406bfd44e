#include "command/state/shards.hpp"

#include <fmt/format.h>

#include "base/error.hpp"
#include "command/table.hpp"
#include "state/files.hpp"

namespace muonrt::tool {

namespace {

constexpr const char* kTensors = ".safetensors";
constexpr const char* kIndex = ".safetensors.index.json";

/// In order, none larger than `most` unless it is one tensor; one where there are no tensors.
std::vector<std::vector<ShardTensor>> cut(std::vector<ShardTensor> tensors, int64_t most) {
  std::vector<std::vector<ShardTensor>> out(1);
  int64_t bytes = 0;
  for (ShardTensor& tensor : tensors) {
    const int64_t more = tensor.entry.bytes();
    if (!out.back().empty() && bytes + more > most) {
      out.emplace_back();
      bytes = 0;
    }
    bytes += more;
    out.back().push_back(std::move(tensor));
  }
  return out;
}

}  // namespace

ShardFolder::ShardFolder(std::string folder, int64_t most, Progress& progress)
    : folder_(std::move(folder)),
      most_(most),
      progress_(progress),
      table_({{"name", "file", Table::Align::kLeft}, {"tensors", "tensors"}, {"bytes", "size"}}) {
  Files files;
  files.make_folder(folder_);
  for (const std::string& name : files.list(folder_))
    MUONRT_REQUIRE(!name.ends_with(kTensors) && !name.ends_with(kIndex), kBad, "--to: ", folder_,
                   " has ", in_quotes(name), " in it, and is left as it is; give a new folder");
}

void ShardFolder::write(const std::string& name, std::vector<ShardTensor> tensors,
                        const std::map<std::string, std::string>& metadata) {
  int64_t total = 0;
  for (const ShardTensor& tensor : tensors) total += tensor.entry.bytes();
  const auto shards = cut(std::move(tensors), most_);
  std::vector<std::pair<std::string, std::string>> map;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file =
        fmt::format("{}-{:05}-of-{:05}{}", name, i + 1, shards.size(), kTensors);
    for (const ShardTensor& tensor : shards[i])
      map.emplace_back(tensor.entry.name, json_text(file));
    write_file(file, shards[i], metadata);
  }
  const std::string text = json_object({{"metadata", json_object({{"total_size", cat(total)}})},
                                        {"weight_map", json_object(map)}}) +
                           "\n";
  indices_.push_back(std::make_unique<OutputFile>(folder_ + "/" + name + kIndex));
  indices_.back()->write(text.data(), text.size());
  indices_.back()->finish();
  table_.add(
      {cell::word(name + kIndex), cell::count(std::ssize(map)), cell::bytes(std::ssize(text))});
}

void ShardFolder::write_file(const std::string& name, const std::vector<ShardTensor>& tensors,
                             const std::map<std::string, std::string>& metadata) {
  const std::string path = folder_ + "/" + name;
  std::vector<TensorEntry> entries;
  for (const ShardTensor& tensor : tensors) entries.push_back(tensor.entry);
  const std::string header = tensor_header(entries, metadata, path);
  files_.push_back(std::make_unique<OutputFile>(path));
  OutputFile& file = *files_.back();
  file.write(header.data(), header.size());
  auto size = std::ssize(header);
  for (const ShardTensor& tensor : tensors) {
    progress_.show(cat("export: ", name, ": ", in_quotes(tensor.entry.name)));
    const std::vector<unsigned char> bytes = tensor.bytes();
    MUONRT_REQUIRE(std::ssize(bytes) == tensor.entry.bytes(), Status::kInternal, path, ": tensor ",
                   in_quotes(tensor.entry.name), " has ", bytes.size(), " bytes, not ",
                   tensor.entry.bytes());
    file.write(bytes.data(), bytes.size());
    size += std::ssize(bytes);
  }
  file.finish();
  table_.add({cell::word(name), cell::count(std::ssize(tensors)), cell::bytes(size)});
}

void ShardFolder::publish() {
  Files folder;
  for (const auto* list : {&files_, &indices_}) {
    for (const auto& file : *list) file->publish();
    folder.sync_folder(folder_);
  }
}

}  // namespace muonrt::tool
