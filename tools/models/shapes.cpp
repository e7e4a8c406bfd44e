#include "models/shapes.hpp"

#include <algorithm>
#include <map>
#include <stdexcept>

namespace muonrt::tool {

namespace {

/// The parts of a name; for example, "a.experts.", 17 and "w1" for "a.experts.17.w1". If the name
/// has no expert number, the number is -1.
struct ExpertName {
  std::string before, after;
  int64_t index = -1;
};

ExpertName expert_name(const std::string& name) {
  static const std::string kWord = "experts.";
  const size_t at = name.find(kWord);
  if (at == std::string::npos || (at > 0 && name[at - 1] != '.')) return {};
  const size_t digits = at + kWord.size(), end = name.find('.', digits);
  if (end == std::string::npos || end == digits || end - digits > 6) return {};
  int64_t index = 0;
  for (size_t i = digits; i < end; ++i) {
    if (name[i] < '0' || name[i] > '9') return {};
    index = 10 * index + (name[i] - '0');
  }
  return {name.substr(0, digits), name.substr(end + 1), index};
}

/// The matrices that have the same name in all experts.
struct ExpertList {
  size_t first = 0;  // index in the list of tensors
  int64_t count = 0, largest = -1;
  bool equal = true;  // shapes
};

}  // namespace

void add_tensor(ModelShapes& to, ModelShape tensor) {
  constexpr double kMaxElements = 0x1p62;
  double elements = 1;
  for (const int64_t n : tensor.shape) elements *= static_cast<double>(n);
  if (elements >= kMaxElements)
    throw std::runtime_error("tensor '" + tensor.name +
                             "' has 2^62 elements or more; use smaller sizes");
  if (std::ssize(to.tensors) >= kMaxTensors)
    throw std::runtime_error("the model has more than " + std::to_string(kMaxTensors) +
                             " tensors; use stacks, or fewer layers");
  to.tensors.push_back(std::move(tensor));
}

void stack_experts(ModelShapes& model) {
  std::map<std::string, ExpertList> lists;
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    const ModelShape& t = model.tensors[i];
    const ExpertName name = expert_name(t.name);
    if (name.index < 0 || t.shape.size() != 2) continue;
    ExpertList& list = lists.try_emplace(name.before + name.after, ExpertList{i}).first->second;
    ++list.count;
    list.largest = std::max(list.largest, name.index);
    list.equal = list.equal && t.shape == model.tensors[list.first].shape;
  }
  std::vector<ModelShape> out;
  int64_t stacked = 0;
  for (size_t i = 0; i < model.tensors.size(); ++i) {
    ModelShape& t = model.tensors[i];
    const ExpertName name = expert_name(t.name);
    const auto found = name.index < 0 ? lists.end() : lists.find(name.before + name.after);
    const bool complete = found != lists.end() && found->second.equal &&
                          found->second.count == found->second.largest + 1;
    if (!complete || t.shape.size() != 2) {
      out.push_back(std::move(t));
      continue;
    }
    ++stacked;
    if (found->second.first != i) continue;
    std::vector<int64_t> shape = {found->second.count};
    shape.insert(shape.end(), t.shape.begin(), t.shape.end());
    out.push_back({.name = found->first, .shape = std::move(shape), .stack = true});
  }
  if (stacked > 0)
    model.notes.push_back("the matrices of the experts of a layer, " + std::to_string(stacked) +
                          " tensors, are counted as stacks");
  model.tensors = std::move(out);
}

}  // namespace muonrt::tool
