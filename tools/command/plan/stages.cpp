#include "command/plan/stages.hpp"

#include <algorithm>
#include <charconv>
#include <stdexcept>

namespace muonrt::tool {

namespace {

/// Returns the layer number in a name, such as 12 in "model.layers.12.mlp.up_proj", or -1.
int64_t layer_of(const std::string& name) {
  for (size_t at = 0; at < name.size();) {
    const size_t end = std::min(name.find('.', at), name.size());
    int64_t n = 0;
    const char* last = name.data() + end;
    const auto read = std::from_chars(name.data() + at, last, n);
    if (read.ec == std::errc() && read.ptr == last && end < name.size()) return n;
    at = end + 1;
  }
  return -1;
}

bool is_embedding(const std::string& name) {
  for (const char* word : {"embed", "wte", "wpe"})
    if (name.find(word) != std::string::npos) return true;
  return false;
}

}  // namespace

std::vector<Stage> pipeline_stages(std::vector<ModelTensor> tensors, int64_t count) {
  int64_t layers = 0;
  for (const ModelTensor& t : tensors) layers = std::max(layers, layer_of(t.name) + 1);
  if (count > 1 && count > layers)
    throw std::runtime_error("--pp is " + std::to_string(count) +
                             ", but the names of the tensors count " + std::to_string(layers) +
                             " layers; use at most one stage for each layer");
  std::vector<Stage> out(static_cast<size_t>(count));
  const auto begin = [&](int64_t stage) { return stage * layers / count; };
  for (int64_t s = 0; s < count; ++s) {
    Stage& stage = out[static_cast<size_t>(s)];
    stage.first_layer = begin(s);
    stage.layers = begin(s + 1) - begin(s);
  }
  for (ModelTensor& t : tensors) {
    const int64_t layer = layer_of(t.name);
    int64_t s = is_embedding(t.name) ? 0 : count - 1;
    if (layer >= 0) {
      s = 0;
      while (begin(s + 1) <= layer) ++s;
    }
    out[static_cast<size_t>(s)].tensors.push_back(std::move(t));
  }
  return out;
}

}  // namespace muonrt::tool
