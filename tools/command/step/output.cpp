#include "command/step/output.hpp"

#include <filesystem>
#include <limits>
#include <set>
#include <stdexcept>

#include "opt_json/output_file.hpp"
#include "state/files.hpp"

namespace muonrt::tool {

namespace fs = std::filesystem;

namespace {

constexpr const char* kModel = "model";

std::string name_of(const std::string& path) { return fs::path(path).filename().string(); }

std::string without_slash(std::string folder) {
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return folder;
}

std::string index_of(const std::string& out) { return index_path(without_slash(out), kModel); }

/// The files of --params again, in another folder.
std::vector<Shard> same_shards(const std::string& folder, const TensorModel& params) {
  std::vector<Shard> out;
  for (const auto& file : params.files())
    out.push_back(
        {folder + "/" + name_of(file->path()), file->table().entries, file->table().metadata});
  return out;
}

/// Outputs but for the parameters.
std::vector<NamedFile> other_outputs(const StepArguments& a) {
  std::vector<NamedFile> out;
  if (!a.state_out.empty()) out.push_back({"--state-out", a.state_out, "--state-in"});
  if (!a.health.empty()) out.push_back({"--health", a.health});
  return out;
}

std::vector<NamedFile> inputs_of(const StepArguments& a) {
  std::vector<NamedFile> out = {{"--params", a.params}};
  for (const std::string& path : a.grads) out.push_back({"--grads", path});
  out.push_back({"--config", a.config});
  if (!a.state_in.empty()) out.push_back({"--state-in", a.state_in});
  for (const std::string& path : a.logits) out.push_back({"--logits", path});
  return out;
}

/// Once it is known which files the folder gets.
void check_shards(const StepArguments& a, const std::vector<Shard>& shards,
                  const std::vector<std::unique_ptr<TensorModel>>& grads) {
  std::set<std::string> names = {name_of(index_of(a.out))};
  std::vector<NamedFile> outputs, inputs = inputs_of(a);
  for (const Shard& shard : shards) {
    names.insert(name_of(shard.path));
    outputs.push_back({"--out", shard.path, "--params"});
  }
  for (const NamedFile& other : other_outputs(a)) {
    std::error_code none;
    const fs::path folder = fs::path(other.path).parent_path();
    if (fs::equivalent(folder.empty() ? "." : folder, a.out, none))
      names.insert(name_of(other.path));
  }
  require_no_model("--out", a.out, names);
  for (const NamedFile& other : other_outputs(a)) inputs.push_back({other.option, other.path});
  for (const auto& model : grads)
    for (const auto& file : model->files()) inputs.push_back({"--grads", file->path()});
  require_writable(outputs, inputs);
}

}  // namespace

bool is_folder(const std::string& out) { return out.ends_with('/'); }

std::string commit_path(const std::string& path) {
  std::error_code none;
  return is_folder(path) || fs::is_directory(path, none) ? index_of(path) : path;
}

std::string commit_path_around(const std::string& file) {
  const fs::path folder = fs::path(without_slash(file)).parent_path();
  return index_of(folder.empty() ? "." : folder.string());
}

std::unique_ptr<ShardWriter> make_output(const StepArguments& a, const TensorModel& params,
                                         const std::vector<std::unique_ptr<TensorModel>>& grads) {
  const auto& entries = params.table().entries;
  const auto& metadata = params.table().metadata;
  if (!is_folder(a.out)) {
    std::vector<Shard> one = {{a.out, entries, metadata}};
    return std::make_unique<ShardWriter>(std::move(one), "", Sums::sha256);
  }
  const std::string folder = without_slash(a.out);
  const bool cut = a.most > 0 || params.files().size() == 1;
  const int64_t most = a.most > 0 ? a.most : std::numeric_limits<int64_t>::max();
  std::vector<Shard> shards =
      cut ? cut_into_shards(folder, kModel, entries, metadata, most) : same_shards(folder, params);
  check_shards(a, shards, grads);
  return std::make_unique<ShardWriter>(std::move(shards), index_of(a.out), Sums::sha256);
}

void check_outputs(const StepArguments& a) {
  if (a.most > 0 && !is_folder(a.out))
    throw std::runtime_error("--max-shard-bytes: --out " + a.out +
                             " is one file; give a folder, whose name ends with /");
  if (is_folder(a.out)) Files().make_folder(without_slash(a.out));
  std::vector<NamedFile> outputs = other_outputs(a);
  outputs.insert(outputs.begin(),
                 {"--out", is_folder(a.out) ? index_of(a.out) : a.out, "--params"});
  require_writable(outputs, inputs_of(a));
}

}  // namespace muonrt::tool
