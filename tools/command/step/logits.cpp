#include "command/step/logits.hpp"

#include <set>
#include <stdexcept>
#include <string_view>

#include "command/step/tensors.hpp"
#include "opt_json/strict_json.hpp"

namespace muonrt::tool {

namespace {

/// Returns whether the name is "layer." followed by a number.
bool is_layer(std::string_view name) {
  constexpr std::string_view kPrefix = "layer.";
  return name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
         name.find_first_not_of("0123456789", kPrefix.size()) == name.npos;
}

StepLogits read_file(const std::string& path,
                     const std::vector<std::pair<int32_t, int32_t>>& layers) {
  const TensorModel file(path);
  StepLogits out;
  std::set<std::string_view> known;
  const auto refuse = [&](std::string_view name, const std::string& problem) {
    throw std::runtime_error(file.path() + ": tensor " + shown(name) + problem);
  };
  for (const auto& [layer, heads] : layers) {
    const std::string name = "layer." + std::to_string(layer);
    const TensorEntry* entry = file.table().find(name);
    if (!entry) refuse(name, " is missing, but parameters of this layer have qk_clip; add it");
    known.insert(entry->name);
    if (!is_float(entry->dtype))
      refuse(name, ": its dtype is " + entry->dtype + ", but must be F32, BF16 or F16; convert it");
    if (entry->elements() != heads)
      refuse(name, ": it has " + std::to_string(entry->elements()) + " values, but the layer has " +
                       std::to_string(heads) + " query heads; write one value for each head");
    const unsigned char* values = file.bytes(*entry).data();
    for (int64_t h = 0; h < heads; ++h)
      out.values.push_back(
          element_as_float(entry->dtype, values + h * element_bytes(entry->dtype)));
  }
  for (const TensorEntry& entry : file.table().entries) {
    if (known.contains(entry.name)) continue;
    if (!is_layer(entry.name)) refuse(entry.name, " is not named layer.N; rename or remove it");
    out.unused.push_back(entry.name);
  }
  return out;
}

}  // namespace

std::vector<StepLogits> read_logits(const std::vector<std::pair<int32_t, int32_t>>& layers,
                                    const std::vector<std::string>& paths, size_t steps) {
  if (layers.empty() && !paths.empty())
    throw std::runtime_error("--logits: no parameter has qk_clip; omit the option");
  if (!layers.empty() && paths.size() != steps)
    throw std::runtime_error("--logits: there are " + std::to_string(paths.size()) + " files for " +
                             std::to_string(steps) + " steps; pass one file for each step");
  std::vector<StepLogits> out(steps);
  for (size_t i = 0; i < paths.size(); ++i) out[i] = read_file(paths[i], layers);
  return out;
}

}  // namespace muonrt::tool
