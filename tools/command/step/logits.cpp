#include "command/step/logits.hpp"

#include <map>
#include <set>
#include <stdexcept>
#include <string_view>

#include "command/step/tensors.hpp"
#include "opt_json/strict_json.hpp"

namespace muonrt::tool {

namespace {

/// The layers with qk_clip, and the number of query heads of each.
std::map<int64_t, int64_t> layers_of(const StepConfig& config, const std::vector<size_t>& used) {
  std::map<int64_t, int64_t> out;
  for (const size_t index : used) {
    const ParamConfig& c = config.rules[index].config;
    if (!c.qk_clip) continue;
    const auto [known, is_new] = out.emplace(c.qk_clip->layer, c.qk_clip->heads);
    if (!is_new && known->second != c.qk_clip->heads)
      throw std::runtime_error(config.file + ": " + c.rule +
                               ".qk_clip.heads: " + std::to_string(c.qk_clip->heads) +
                               ", but another rule gives layer " + std::to_string(known->first) +
                               " " + std::to_string(known->second));
  }
  return out;
}

std::vector<float> read_file(const std::string& path, const std::map<int64_t, int64_t>& layers) {
  const TensorModel file(path);
  std::vector<float> out;
  std::set<std::string_view> known;
  const auto refuse = [&](std::string_view name, const std::string& problem) {
    throw std::runtime_error(file.path() + ": tensor " + shown(name) + problem);
  };
  for (const auto& [layer, heads] : layers) {
    const std::string name = "layer." + std::to_string(layer);
    const TensorEntry* entry = file.table().find(name);
    if (!entry) refuse(name, " is missing, but a rule has qk_clip for this layer");
    known.insert(entry->name);
    if (!is_float(entry->dtype))
      refuse(name, ": its dtype is " + entry->dtype + ", but must be F32, BF16 or F16");
    if (entry->elements() != heads)
      refuse(name, ": it has " + std::to_string(entry->elements()) + " values, but the layer has " +
                       std::to_string(heads) + " query heads");
    const unsigned char* values = file.bytes(*entry).data();
    for (int64_t h = 0; h < heads; ++h)
      out.push_back(element_as_float(entry->dtype, values + h * element_bytes(entry->dtype)));
  }
  for (const TensorEntry& entry : file.table().entries)
    if (!known.contains(entry.name))
      refuse(entry.name, " belongs to no qk_clip; remove it, or add a rule");
  return out;
}

}  // namespace

std::vector<std::vector<float>> read_logits(const StepConfig& config,
                                            const std::vector<size_t>& used,
                                            const std::vector<std::string>& paths, size_t steps) {
  const std::map<int64_t, int64_t> layers = layers_of(config, used);
  if (layers.empty() && !paths.empty())
    throw std::runtime_error("--logits: no parameter has qk_clip; omit the option");
  if (!layers.empty() && paths.size() != steps)
    throw std::runtime_error("--logits: " + std::to_string(paths.size()) + " files for " +
                             std::to_string(steps) + " steps, but qk_clip needs one for each");
  std::vector<std::vector<float>> out(steps);
  for (size_t i = 0; i < paths.size(); ++i) out[i] = read_file(paths[i], layers);
  return out;
}

}  // namespace muonrt::tool
