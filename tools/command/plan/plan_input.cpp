#include "command/plan/plan_input.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <stdexcept>

namespace muonrt::tool {

namespace {

/// Parses placements. Replaces placements with R if they shard a dimension that the tensor does not
/// have.
std::vector<muonrt_placement_t> fitting(const std::string& text, size_t dims) {
  int32_t count = 0;
  check(muonrt_placements_parse(nullptr, 0, &count, text.c_str()));
  std::vector<muonrt_placement_t> out(static_cast<size_t>(count));
  check(muonrt_placements_parse(out.data(), count, &count, text.c_str()));
  for (muonrt_placement_t& p : out) {
    const bool cuts = p.kind == MUONRT_PLACEMENT_SHARD || p.kind == MUONRT_PLACEMENT_STRIDED_SHARD;
    if (cuts && p.dim >= static_cast<int>(dims)) p = {MUONRT_PLACEMENT_REPLICATE, 0, 0};
  }
  return out;
}

muonrt_layout_t layout_of(const muonrt_mesh_t& mesh,
                          const std::vector<muonrt_placement_t>& placements, bool ordered) {
  muonrt_layout_t out = layout();
  out.mesh = &mesh;
  out.placements = placements.data();
  out.reading = ordered ? MUONRT_READING_ORDERED : MUONRT_READING_LITERAL;
  return out;
}

void require_count(const std::vector<muonrt_placement_t>& placements, const TextMesh& mesh,
                   const std::string& text) {
  if (std::ssize(placements) != mesh.dims())
    throw std::runtime_error(
        fmt::format("placements '{}' are {}, but the mesh {} has {} dimensions; write one for each",
                    text, placements.size(), mesh.text(), mesh.dims()));
}

}  // namespace

PlanInput::PlanInput(const std::vector<ModelTensor>& tensors, const PlanMeshes& meshes,
                     const PlacementWords& words, const TensorTypes& types,
                     const StepConfig* config)
    : meshes_(meshes),
      config_(config),
      dense_(meshes.of({}).c()),
      experts_(meshes.of({"", {1, 1, 1}, true}).c()) {
  if (config) {
    choose_rules(tensors);
  } else {
    groups_ = {muon_group(), adamw_group()};
    groups_[0].name = "muon";
    groups_[1].name = "adamw";
  }
  params_.reserve(tensors.size());
  for (const ModelTensor& tensor : tensors) add(tensor, words, types);
  if (params_.empty())
    throw std::runtime_error(
        "no parameter is left, because all tensors are frozen; change the "
        "roles in " +
        (config ? config->file : std::string("the model")));
}

void PlanInput::choose_rules(const std::vector<ModelTensor>& tensors) {
  std::set<size_t> used;
  for (const ModelTensor& t : tensors) {
    const size_t rule = config_->rule_of(t.name, t.shape);
    if (config_->rules[rule].config.role != "frozen") used.insert(rule);
  }
  used_.assign(used.begin(), used.end());
  for (const size_t rule : used_) {
    rules_.emplace_back(config_->file, config_->rules[rule].config);
    groups_.push_back(rules_.back().group(0));
  }
  options_ = bound_options(*config_, used_);
  // The names of groups point into the rules. Set them now, because the rules moved when the list
  // grew.
  for (size_t i = 0; i < rules_.size(); ++i) groups_[i] = rules_[i].group(0);
}

void PlanInput::add(const ModelTensor& given, const PlacementWords& words,
                    const TensorTypes& types) {
  ModelTensor tensor = given;
  size_t rule = 0;
  if (config_) {
    rule = config_->rule_of(tensor.name, tensor.shape);
    const ParamConfig& c = config_->rules[rule].config;
    if (c.role == "frozen") {
      ++frozen_;
      return;
    }
    tensor.muon = c.is_muon();
  }
  Storage& s = storage_.emplace_back();
  muonrt_param_t& p = params_.emplace_back(param());
  p.name = given.name.c_str();
  p.ndim = static_cast<int32_t>(given.shape.size());
  p.shape = given.shape.data();
  p.dtype = types.dtype;
  p.grad_dtype = types.grad_dtype;
  p.master_kind = types.master_kind;
  const bool more = given.shape.size() > 3;
  p.view = !tensor.muon     ? MUONRT_VIEW_NONE
           : tensor.stack() ? MUONRT_VIEW_STACK
           : more           ? MUONRT_VIEW_FLATTEN
                            : MUONRT_VIEW_NONE;
  p.transposed = tensor.muon && tensor.transposed;
  if (config_) {
    take_rule(p, s, tensor, rule);
  } else {
    p.group = tensor.muon ? 0 : 1;
  }
  take_layouts(p, s, tensor, words);
  ++totals_.tensors;
  totals_.elements += tensor.elements();
  totals_.muon_tensors += tensor.muon;
  totals_.muon_matrices +=
      tensor.muon ? (tensor.stack() ? tensor.shape[0] : 1) * std::max<int64_t>(1, p.n_parts) : 0;
  totals_.muon_elements += tensor.muon ? tensor.elements() : 0;
}

void PlanInput::take_rule(muonrt_param_t& p, Storage& s, const ModelTensor& tensor, size_t rule) {
  const ParamConfig& c = config_->rules[rule].config;
  const auto at =
      static_cast<size_t>(std::lower_bound(used_.begin(), used_.end(), rule) - used_.begin());
  p.group = static_cast<int32_t>(at);
  p.master_kind = c.master_kind.value_or(p.master_kind);
  if (!tensor.muon) return;
  if (c.view == "flatten") p.view = MUONRT_VIEW_FLATTEN;
  if (c.batch_dims || c.row_dims) {
    p.view = MUONRT_VIEW_NONE;
    p.batch_dims = static_cast<int32_t>(c.batch_dims.value_or(c.view == "stack" ? 1 : 0));
    p.row_dims = static_cast<int32_t>(c.row_dims.value_or(1));
  }
  p.transposed = c.transposed.value_or(tensor.transposed);
  if (tensor.shape.size() < 2)
    throw std::runtime_error(
        fmt::format("{}: {}: param '{}' has the role muon, but {} dimensions; "
                    "give it the role adamw",
                    config_->file, c.rule, tensor.name, tensor.shape.size()));
  int64_t rows = tensor.shape[tensor.shape.size() - 2], cols = tensor.shape.back();
  if (p.transposed) std::swap(rows, cols);
  s.parts = parts_of(c.parts, rows, cols,
                     fmt::format("{}: {}.parts: param '{}'", config_->file, c.rule, tensor.name));
  for (const MatrixPart& part : s.parts) {
    muonrt_part_t& out = s.c_parts.emplace_back(muonrt::part());
    out.name = part.name.empty() ? nullptr : part.name.c_str();
    (part.columns ? out.cols : out.rows) = part.runs.data();
    (part.columns ? out.n_cols : out.n_rows) = std::ssize(part.runs);
    out.lr_factor = part.lr_factor;
    if (part.normuon_axis && c.normuon) out.normuon_axis = bound_axis(*part.normuon_axis);
  }
  p.parts = s.c_parts.empty() ? nullptr : s.c_parts.data();
  p.n_parts = std::ssize(s.c_parts);
  p.qk_clip = rules_[at].qk_clip();
  rules_[at].set_exchange(p);
}

void PlanInput::take_layouts(muonrt_param_t& p, Storage& s, const ModelTensor& tensor,
                             const PlacementWords& words) {
  const muonrt_mesh_t& mesh = tensor.stack() ? experts_ : dense_;
  const TextMesh& named = meshes_.of(tensor);
  const size_t dims = tensor.shape.size();
  const bool by_names = words.params.empty();
  s.params = by_names ? meshes_.placements(tensor) : fitting(words.params, dims);
  require_count(s.params, named, words.params);
  s.layout = layout_of(mesh, s.params, by_names || words.reading == "ordered");
  p.layout = &s.layout;
  if (words.grads.empty()) return;
  s.grads = fitting(words.grads, dims);
  require_count(s.grads, named, words.grads);
  s.grad_layout = layout_of(mesh, s.grads, words.reading == "ordered");
  p.grad_layout = &s.grad_layout;
}

Plan PlanInput::plan(OptimizerOptions options) const {
  return Plan(meshes_.world(), options.linked(), groups_, params_);
}

}  // namespace muonrt::tool
