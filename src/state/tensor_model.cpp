#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.hpp"
#include "base/json_value.hpp"
#include "state/tensor_file.hpp"

namespace muonrt {

namespace fs = std::filesystem;

namespace {

constexpr const char* kIndex = "model.safetensors.index.json";

/// Returns the file of each tensor.
std::map<std::string, std::string> weight_map(const std::string& path) {
  const MappedFile file(path);
  const auto bytes = file.bytes();
  const JsonValue json =
      parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
  const JsonValue* const found = json.find("weight_map");
  const auto* const object = found ? found->as<JsonValue::Object>() : nullptr;
  MUONRT_REQUIRE(object, Status::kCorrupt, path,
                 ": the index has no object 'weight_map'; pass the index of a model, or one of its "
                 "files");
  std::map<std::string, std::string> out;
  for (const auto& [name, value] : *object) {
    const auto* const text = value.as<std::string>();
    MUONRT_REQUIRE(text && !text->empty() && text->find('/') == text->npos && *text != "..",
                   Status::kCorrupt, path, ": weight_map: ", in_quotes(name),
                   ": the file must be in the folder of the index; use a name without '/'");
    out[name] = *text;
  }
  return out;
}

}  // namespace

TensorModel::TensorModel(std::string path) : path_(std::move(path)) {
  std::error_code none;
  if (fs::is_directory(path_, none)) {
    add_folder();
  } else if (fs::path(path_).extension() == ".json") {
    add_index(path_);
  } else {
    add_files({path_});
  }
}

void TensorModel::add_folder() {
  const fs::path folder = path_;
  std::error_code none;
  if (fs::exists(folder / kIndex, none)) return add_index((folder / kIndex).string());
  std::vector<std::string> paths;
  try {
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.path().extension() == ".safetensors") paths.push_back(entry.path().string());
  } catch (const fs::filesystem_error& e) {
    throw Error(Status::kIo, cat(path_, ": cannot be read: ", e.code().message()));
  }
  MUONRT_REQUIRE(
      !paths.empty(), kInvalidArg, path_,
      ": the folder has no *.safetensors; pass a file, an index, or a folder with files");
  std::sort(paths.begin(), paths.end());
  add_files(paths);
}

void TensorModel::add_index(const std::string& path) {
  const auto map = weight_map(path);
  std::set<std::string> names;
  for (const auto& [unused, file] : map) names.insert(file);
  const fs::path folder = fs::path(path).parent_path();
  std::vector<std::string> paths;
  for (const std::string& name : names) paths.push_back((folder / name).string());
  add_files(paths);
  for (const auto& [name, file] : map) {
    const TensorEntry* const entry = table_.find(name);
    MUONRT_REQUIRE(entry && files_[static_cast<size_t>(entry->file)]->path() == folder / file,
                   Status::kCorrupt, path, ": tensor ", in_quotes(name), " is not in ",
                   in_quotes(file));
  }
  for (const TensorEntry& entry : table_.entries)
    MUONRT_REQUIRE(map.contains(entry.name), Status::kCorrupt, path, ": tensor ",
                   in_quotes(entry.name), " of ", files_[static_cast<size_t>(entry.file)]->path(),
                   " is not in weight_map");
}

void TensorModel::add_files(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    files_.push_back(std::make_unique<TensorFile>(path));
    const TensorTable& table = files_.back()->table();
    for (TensorEntry entry : table.entries) {
      entry.file = static_cast<int32_t>(files_.size() - 1);
      table_.entries.push_back(std::move(entry));
    }
    if (files_.size() == 1) table_.metadata = table.metadata;
    std::erase_if(table_.metadata, [&](const auto& item) {
      const auto same = table.metadata.find(item.first);
      return same == table.metadata.end() || same->second != item.second;
    });
  }
  table_.index();
  for (const TensorEntry& entry : table_.entries) {
    const TensorEntry* const last = table_.find(entry.name);
    MUONRT_REQUIRE(last == &entry, kInvalidArg, path_, ": tensor ", in_quotes(entry.name),
                   " is in ", files_[static_cast<size_t>(entry.file)]->path(), " and in ",
                   files_[static_cast<size_t>(last->file)]->path(), "; remove it from one of them");
  }
}

const TensorEntry& TensorModel::at(const std::string& name) const {
  const TensorEntry* const found = table_.find(name);
  MUONRT_REQUIRE(found, kInvalidArg, path_, ": there is no tensor ", in_quotes(name));
  return *found;
}

std::span<const unsigned char> TensorModel::bytes(const TensorEntry& entry) const {
  return files_[static_cast<size_t>(entry.file)]->data().subspan(
      static_cast<size_t>(entry.begin), static_cast<size_t>(entry.bytes()));
}

}  // namespace muonrt
