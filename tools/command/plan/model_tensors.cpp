#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>

#include "command/plan/models.hpp"
#include "models/model_file.hpp"
#include "muonrt/muonrt.hpp"
#include "opt_json/value.hpp"

namespace muonrt::tool {

namespace {

/// Returns the tensors of a list of shapes.
std::vector<ModelTensor> listed_tensors(const std::string& text) {
  std::vector<ModelTensor> out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string item = text.substr(at, end - at);
    std::vector<int64_t> sizes = sizes_of(item);
    if (sizes.empty() || sizes.size() > 3) {
      throw std::runtime_error(fmt::format(
          "'{}' is neither a shape, a model nor a file; write rows x columns x how many, such as "
          "768x768x4,3072x768, one of {}, or the path of a config.json, a *.safetensors, a "
          "*.safetensors.index.json or a JSON of shapes",
          item, fmt::join(model_names(), ", ")));
    }
    const int64_t copies = sizes.size() == 3 ? sizes[2] : 1;
    if (copies > kMaxTensors - std::ssize(out)) {
      throw std::runtime_error(
          fmt::format("'{}' has more than {} tensors; use fewer", text, kMaxTensors));
    }
    sizes.resize(std::min<size_t>(sizes.size(), 2));
    for (int64_t i = 0; i < copies; ++i)
      out.push_back(
          {fmt::format("{}.{}", fmt::join(sizes, "x"), out.size()), sizes, sizes.size() == 2});
    at = end + 1;
  }
  return out;
}

/// Returns whether Muon updates this tensor. Throws if its name does not determine the role.
bool muon_by_name(const ModelShape& t) {
  const auto above_one = [](int64_t n) { return n > 1; };
  if (std::count_if(t.shape.begin(), t.shape.end(), above_one) <= 1) return false;
  const auto ndim = static_cast<int32_t>(t.shape.size());
  if (ndim >= 3 && !t.stack && t.shape[1] == 1) return false;  // a depthwise convolution
  muonrt_role role = MUONRT_ROLE_ADAMW;
  muonrt_view view = MUONRT_VIEW_NONE;
  check(muonrt_routing_resolve(&role, &view, nullptr, t.name.c_str(), ndim));
  return role == MUONRT_ROLE_MUON;
}

}  // namespace

std::vector<std::string> model_names() {
  std::vector<std::string> out;
  for (const NamedModel& model : named_models()) out.emplace_back(model.name);
  return out;
}

std::vector<ModelTensor> model_tensors(const std::string& text, std::vector<std::string>* notes,
                                       std::string* dtype) {
  const std::vector<std::string> names = model_names();
  const bool published = std::find(names.begin(), names.end(), text) != names.end();
  if (!published && !is_model_file(text)) return listed_tensors(text);
  ModelShapes shapes = read_model(text);
  std::vector<ModelTensor> out;
  for (ModelShape& t : shapes.tensors) {
    const bool muon = t.role.empty() ? muon_by_name(t) : t.role == "muon";
    if (muon && t.shape.size() == 3 && !t.stack && t.role == "muon")
      throw std::runtime_error(fmt::format(
          "tensor '{}' has the role muon and 3 dimensions; add \"stack\": true, or use 2", t.name));
    out.push_back({std::move(t.name), std::move(t.shape), muon, {}, t.transposed, true});
  }
  if (notes) *notes = std::move(shapes.notes);
  if (dtype) *dtype = std::move(shapes.dtype);
  return out;
}

}  // namespace muonrt::tool
