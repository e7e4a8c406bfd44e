#include "command/step/output.hpp"

#include <filesystem>
#include <limits>
#include <stdexcept>

#include "opt_json/output_file.hpp"

namespace muonrt::tool {

namespace {

/// The files of --params again.
std::vector<Shard> same_shards(const TensorModel& params) {
  std::vector<Shard> out;
  for (const auto& file : params.files())
    out.push_back({std::filesystem::path(file->path()).filename().string(), file->table().entries,
                   file->table().metadata});
  return out;
}

}  // namespace

std::unique_ptr<OutputFolder> open_output(const StepArguments& a) {
  auto out = std::make_unique<OutputFolder>("--out", a.out, true);
  if (a.health.empty()) return out;
  if (out->contains(a.health))
    throw std::runtime_error("--health: " + a.health +
                             " lies in the folder of --out; name one that does not");
  std::vector<NamedFile> inputs = {{"--params", a.params}, {"--config", a.config}};
  for (const std::string& path : a.grads) inputs.push_back({"--grads", path});
  for (const std::string& path : a.logits) inputs.push_back({"--logits", path});
  require_writable({{"--health", a.health}}, inputs);
  return out;
}

std::unique_ptr<ShardWriter> make_writer(const StepArguments& a, const TensorModel& params) {
  constexpr const char* kModel = "model";
  const bool cut = a.most > 0 || params.files().size() == 1;
  const int64_t most = a.most > 0 ? a.most : std::numeric_limits<int64_t>::max();
  std::vector<Shard> shards =
      cut ? cut_into_shards(kModel, params.table().entries, params.table().metadata, most)
          : same_shards(params);
  return std::make_unique<ShardWriter>(OutputFolder::work_path(a.out), kModel, std::move(shards),
                                       true);
}

}  // namespace muonrt::tool
