#include "command/plan/model_plan.hpp"

#include <chrono>

#include "layout/parse.hpp"
#include "optimizer/problem.hpp"

namespace muonrt::tool {

namespace {

/// Parses placements; those that cut a dimension which the tensor lacks become R.
std::vector<Placement> fitting(const std::string& text, size_t dims) {
  std::vector<Placement> out = parse_placements(text);
  for (Placement& p : out) {
    const bool cuts = p.kind == PlacementKind::kShard || p.kind == PlacementKind::kStridedShard;
    if (cuts && p.tensor_dim >= static_cast<int>(dims)) p = {};
  }
  return out;
}

std::vector<Placement> by_names(const Mesh& mesh, const ModelTensor& tensor) {
  std::vector<Placement> out = named_placements(mesh, tensor);
  for (size_t k = 0; k < out.size(); ++k) {
    if (mesh.names()[k] == "ddp") out[k] = {PlacementKind::kPartial, 0, 1};
  }
  return out;
}

/// Sets the layouts of a parameter and of its gradient.
void take_layouts(ParamSpec& spec, const std::shared_ptr<const Mesh>& mesh,
                  const ModelTensor& tensor, const PlacementWords& words) {
  const Reading reading = words.reading == "ordered" ? Reading::kOrdered : Reading::kLiteral;
  const size_t dims = tensor.shape.size();
  ParamSettings p;
  p.name = tensor.name;
  p.layout = Layout::from_placements(
      mesh, tensor.shape,
      words.params.empty() ? by_names(*mesh, tensor) : fitting(words.params, dims), reading);
  if (!words.grads.empty())
    take_grad_layout(
        p, Layout::from_placements(mesh, tensor.shape, fitting(words.grads, dims), reading));
  spec.layout = p.layout;
  spec.grad_layout = p.grad_layout;
}

}  // namespace

OptimizerSettings model_settings(DeviceKind kind) {
  auto settings = OptimizerSettings::defaults(kind);
  settings.groups = {GroupSettings::defaults(muonrt::Role::kMuon)};
  return settings;
}

Problem model_problem(const std::vector<ModelTensor>& tensors, const std::string& mesh_text,
                      PlanOptions options, const PlacementWords& words,
                      const OptimizerSettings& settings) {
  const auto mesh = std::make_shared<const Mesh>(parse_mesh(mesh_text));
  const GroupSettings& muon = settings.groups[0];
  const NewtonSchulz method = make_newton_schulz(settings)[0];
  Problem problem;
  problem.options = options;
  problem.options.world = static_cast<int>(mesh->size());
  for (const ModelTensor& tensor : tensors) {
    ParamSpec spec;
    spec.name = tensor.name;
    spec.role = tensor.muon ? Role::kMuon : Role::kAdamW;
    spec.group = tensor.muon ? 0 : 1;
    spec.stack = tensor.muon && tensor.stack();
    take_layouts(spec, mesh, tensor, words);
    if (tensor.muon) {
      spec.form = permitted_form(method, muon.form);
      spec.gram_restarts = method.gram_restarts;
      spec.newton_schulz_steps = muon.steps;
      const size_t last = tensor.shape.size() - 1;
      spec.update_scale = update_scale(muon.scale_rule, muon.scale_factor, tensor.shape[last - 1],
                                       tensor.shape[last]);
    }
    problem.params.push_back(std::move(spec));
  }
  return problem;
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace muonrt::tool
