#include "command/step/logits.hpp"

#include <stdexcept>

#include "command/step/tensors.hpp"
#include "opt_json/strict_json.hpp"

namespace muonrt::tool {

namespace {

std::string layer_name(int64_t layer) { return "layer." + std::to_string(layer); }

void check_file(const TensorModel& file, const std::map<int64_t, int64_t>& layers) {
  for (const auto& [layer, heads] : layers) {
    const TensorEntry* entry = file.table().find(layer_name(layer));
    const std::string where = file.path() + ": tensor " + shown(layer_name(layer));
    if (!entry) throw std::runtime_error(where + " is missing (a rule has qk_clip for it)");
    if (!is_float(entry->dtype)) {
      throw std::runtime_error(where + ": its dtype is " + entry->dtype +
                               " (F32, BF16 or F16 belong there)");
    }
    if (entry->elements() != heads) {
      throw std::runtime_error(where + ": it has " + std::to_string(entry->elements()) +
                               " values (one for each of the " + std::to_string(heads) +
                               " query heads belongs there)");
    }
  }
  for (const TensorEntry& entry : file.table().entries) {
    bool known = false;
    for (const auto& [layer, heads] : layers) known = known || entry.name == layer_name(layer);
    if (!known) {
      throw std::runtime_error(file.path() + ": tensor " + shown(entry.name) +
                               " belongs to no qk_clip; remove it, or add a rule");
    }
  }
}

}  // namespace

StepLogits::StepLogits(const StepConfig& config, const std::vector<size_t>& used,
                       const std::vector<std::string>& paths, size_t steps) {
  for (const size_t index : used) {
    const ParamConfig& c = config.rules[index].config;
    if (!c.qk_clip) continue;
    const auto [known, fresh] = layers_.emplace(c.qk_clip->layer, c.qk_clip->heads);
    if (!fresh && known->second != c.qk_clip->heads) {
      throw std::runtime_error(config.file + ": " + c.rule +
                               ".qk_clip.heads: " + std::to_string(c.qk_clip->heads) +
                               ", but another rule gives layer " + std::to_string(known->first) +
                               " " + std::to_string(known->second));
    }
  }
  if (empty() && !paths.empty()) {
    throw std::runtime_error("--logits: no parameter has qk_clip; leave it out");
  }
  if (!empty() && paths.size() != steps) {
    throw std::runtime_error("--logits: " + std::to_string(paths.size()) + " files for " +
                             std::to_string(steps) + " steps (qk_clip needs one for each)");
  }
  for (const std::string& path : paths) {
    files_.push_back(std::make_unique<TensorModel>(path));
    check_file(*files_.back(), layers_);
  }
}

std::vector<float> StepLogits::at(size_t step) const {
  std::vector<float> out;
  for (const auto& [layer, heads] : layers_) {
    const TensorEntry& entry = files_[step]->at(layer_name(layer));
    const auto bytes = files_[step]->bytes(entry);
    const int64_t size = element_bytes(entry.dtype);
    for (int64_t h = 0; h < heads; ++h) {
      out.push_back(element_as_float(entry.dtype, bytes.data() + h * size));
    }
  }
  return out;
}

}  // namespace muonrt::tool
