#include "command/plan/planned_model.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace muonrt::tool {

namespace {

PlannedStage plan_stage(const PlanArguments& a, const Stage& stage, const PlanMeshes& meshes,
                        const StepConfig* config, int64_t& frozen) {
  const PlanInput input(stage.tensors, meshes, a.placements, types_of(a), config);
  Plan plan = input.plan(options_of(a, input.options()));
  const muonrt_plan_summary_t summary = plan.summary();
  const muonrt_plan_rank_t largest = plan.rank(summary.largest_rank);
  frozen += input.frozen();
  return {stage.first_layer, stage.layers, input.totals(), std::move(plan), summary, largest};
}

/// Returns the index of the stage with the largest value.
template <class Value>
size_t largest_of(const std::vector<PlannedStage>& stages, const Value& value) {
  size_t out = 0;
  for (size_t s = 1; s < stages.size(); ++s)
    if (value(stages[s]) > value(stages[out])) out = s;
  return out;
}

}  // namespace

ModelStages read_model(const PlanArguments& a) {
  ModelStages out;
  if (!a.config.empty()) out.config = read_config(a.config);
  std::string dtype;
  out.stages = pipeline_stages(model_tensors(a.model, &out.notes, &dtype), a.stages);
  if (dtype == "bfloat16" && a.dtype == "f32")
    out.notes.push_back(
        "the file states bfloat16, but --dtype is f32; add --dtype bf16 if the trainer keeps bf16 "
        "weights");
  if (a.stage && *a.stage >= a.stages)
    throw std::runtime_error(fmt::format("--stage is {}, but --pp is {}; use 0 to {}", *a.stage,
                                         a.stages, a.stages - 1));
  const bool experts = std::any_of(out.stages.begin(), out.stages.end(), [](const Stage& s) {
    return std::any_of(s.tensors.begin(), s.tensors.end(),
                       [](const ModelTensor& t) { return t.stack(); });
  });
  if (!a.experts.empty() && !experts)
    throw std::runtime_error(
        fmt::format("--experts is '{}', but the model '{}' has no experts; leave it out",
                    a.experts[0], a.model));
  if (a.experts.size() > 1 && a.experts.size() != a.meshes.size())
    throw std::runtime_error(
        fmt::format("--experts has {} meshes, but --mesh has {}; give one for each, or one for all",
                    a.experts.size(), a.meshes.size()));
  return out;
}

PlannedModel plan_model(const PlanArguments& a, const ModelStages& model, size_t mesh) {
  const PlanMeshes meshes(a.meshes[mesh],
                          a.experts.empty() ? "" : a.experts[a.experts.size() > 1 ? mesh : 0]);
  PlannedModel out;
  out.mesh = meshes.text();
  out.world = meshes.world();
  for (const Stage& stage : model.stages)
    out.stages.push_back(
        plan_stage(a, stage, meshes, model.config ? &*model.config : nullptr, out.frozen));
  out.shown =
      a.stage ? static_cast<size_t>(*a.stage)
              : largest_of(out.stages, [](const PlannedStage& s) { return s.summary.makespan; });
  return out;
}

size_t PlannedModel::largest_stage() const {
  return largest_of(stages, [](const PlannedStage& s) { return s.largest.total_bytes; });
}

const muonrt_plan_rank_t& PlannedModel::largest() const { return stages[largest_stage()].largest; }

ModelTotals PlannedModel::totals() const {
  ModelTotals out;
  for (const PlannedStage& s : stages) {
    out.tensors += s.totals.tensors;
    out.elements += s.totals.elements;
    out.muon_tensors += s.totals.muon_tensors;
    out.muon_matrices += s.totals.muon_matrices;
    out.muon_elements += s.totals.muon_elements;
  }
  return out;
}

Table PlannedModel::table() const {
  Table out({{"stage", "stage"},
             {"first_layer", "first layer"},
             {"layers", "layers"},
             {"parameters", "parameters"},
             {"matrices", "matrices"},
             {"makespan_cost", "busiest (G)"},
             {"moved_bytes", "moved"},
             {"total_bytes", "memory"}});
  for (size_t s = 0; s < stages.size(); ++s) {
    const PlannedStage& of = stages[s];
    out.add(
        {cell::count(static_cast<int64_t>(s)),
         cell::count(of.first_layer),
         cell::count(of.layers),
         cell::grouped(of.totals.elements),
         cell::count(of.summary.matrices),
         {fmt::format("{:.3f}", of.summary.makespan / 1e9), fmt::format("{}", of.summary.makespan)},
         cell::bytes(of.summary.moved_bytes),
         cell::bytes(of.largest.total_bytes)});
  }
  return out;
}

}  // namespace muonrt::tool
