#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "command/command.hpp"
#include "command/plan/compare.hpp"
#include "command/plan/machine.hpp"
#include "command/plan/memory_limit.hpp"
#include "command/plan/plan_arguments.hpp"
#include "command/plan/planned_model.hpp"
#include "command/progress.hpp"
#include "opt_json/output_file.hpp"
#include "show/fit.hpp"
#include "show/table.hpp"
#include "show/timeline.hpp"

namespace muonrt::tool {

namespace {

/// The results that the command prints.
struct Report {
  PlannedModel planned;
  std::vector<std::string> notes;
  std::optional<MachineAnswer> machine;
  std::optional<MemoryChoice> memory;
  std::vector<ComparisonRow> strategies;  // --compare
  std::string explanation;                // --explain
  double seconds = 0;
};

std::string model_json(const PlanArguments& a, const ModelTotals& total) {
  return json_object({{"name", json_text(a.model)},
                      {"tensors", std::to_string(total.tensors)},
                      {"parameters", std::to_string(total.elements)},
                      {"muon_tensors", std::to_string(total.muon_tensors)},
                      {"muon_matrices", std::to_string(total.muon_matrices)},
                      {"muon_parameters", std::to_string(total.muon_elements)}});
}

std::string list_json(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) out += (out.empty() ? "" : ",") + json_text(text);
  return "[" + out + "]";
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    out.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

void print_json(const PlanArguments& a, const Report& r) {
  std::vector<std::pair<std::string, std::string>> fields = {
      {"model", model_json(a, r.planned.totals())},
      {"mesh", json_text(r.planned.mesh)},
      {"notes", list_json(r.notes)}};
  if (r.planned.stages.size() > 1) {
    fields.emplace_back("stages", r.planned.table().json());
    fields.emplace_back("stage", std::to_string(r.planned.shown));
  }
  if (r.memory)
    fields.emplace_back("memory_limit",
                        json_object({{"flags", json_text(r.memory->flags())},
                                     {"opt_json", "{" + r.memory->opt_json() + "}"},
                                     {"total_bytes", std::to_string(r.memory->total_bytes)},
                                     {"plans", std::to_string(r.memory->plans)}}));
  if (r.machine) fields.emplace_back("machine", r.machine->json);
  if (!r.explanation.empty())
    fields.emplace_back("explanation", list_json(lines_of(r.explanation)));
  if (!r.strategies.empty())
    fields.emplace_back("comparison", comparison_json("strategy", r.strategies));
  fields.emplace_back("seconds", fmt::format("{}", r.seconds));
  fields.emplace_back("plan", r.planned.stages[r.planned.shown].plan.describe(MUONRT_FORMAT_JSON));
  fmt::print("{}\n", json_object(fields));
}

void print_text(const PlanArguments& a, const Report& r) {
  std::string out;
  if (r.machine) {
    out += fmt::format("{}\n({})\n", r.machine->headline, r.machine->note);
    if (!r.machine->remedy.empty()) out += fmt::format("{}\n", r.machine->remedy);
    out += "\n";
  }
  if (r.memory)
    out +=
        fmt::format("memory      at most {}: {} ({} plans compared)\n            opt.json: {}\n\n",
                    cell::bytes(r.memory->total_bytes).text, r.memory->flags(), r.memory->plans,
                    r.memory->opt_json());
  if (!r.explanation.empty()) out += fmt::format("{}\n", r.explanation);
  if (!r.strategies.empty())
    out += fmt::format("{}\n{}\n", comparison_table("strategy", r.strategies).text(),
                       assumptions_of(r.strategies));
  const ModelTotals total = r.planned.totals();
  out += fmt::format(
      "model       {}: {} parameters in {} tensors; {} matrices with {} of them for Muon\n",
      a.model, cell::grouped(total.elements).text, total.tensors, total.muon_matrices,
      cell::grouped(total.muon_elements).text);
  for (const std::string& note : r.notes) out += fmt::format("            {}\n", note);
  out += fmt::format("mesh        {}\n", r.planned.mesh);
  const auto count = static_cast<int64_t>(r.planned.stages.size());
  if (count > 1) {
    out += fmt::format("stages      {} of {} ranks, {} ranks in total\n\n{}\n", count,
                       r.planned.world, count * r.planned.world, r.planned.table().text());
    out += fmt::format("Stage {} needs the most memory. The plan of stage {}{}:\n\n",
                       r.planned.largest_stage(), r.planned.shown,
                       a.stage ? "" : ", which has the most work");
  }
  out += fmt::format("{}\nPlanned in {:.3f} s.\n",
                     r.planned.stages[r.planned.shown].plan.describe(MUONRT_FORMAT_TEXT, a.rows),
                     r.seconds);
  print_fitted(out);
}

void write_pictures(const PlanArguments& a, const PlannedModel& planned,
                    const MachineAnswer& answer) {
  if (!a.trace.empty()) write_text_file(a.trace, answer.trace);
  if (a.timeline.empty()) return;
  Timeline picture;
  picture.title =
      fmt::format("{} on {} ranks of {} ({})", a.model, planned.world, a.machine, planned.mesh);
  picture.note = "modelled";
  picture.spans = last_step(answer.trace);
  write_text_file(a.timeline, picture.svg());
}

/// Returns a table with one row for each mesh.
int compare_meshes(const PlanArguments& a, const ModelStages& model, const Machine& machine,
                   LongWork& work) {
  std::vector<ComparisonRow> rows;
  ModelTotals totals;
  for (size_t i = 0; i < a.meshes.size(); ++i) {
    work.show(fmt::format("plan: {}, mesh {} of {}", a.model, i + 1, a.meshes.size()));
    const PlannedModel planned = plan_model(a, model, i);
    totals = planned.totals();
    const muonrt_plan_t* plan = planned.stages[planned.shown].plan.get();
    rows.push_back(machine.row(planned.mesh, plan, machine.answer(plan, planned.largest(), false),
                               planned.largest()));
  }
  work.clear();
  if (a.json) {
    fmt::print("{}\n", json_object({{"model", model_json(a, totals)},
                                    {"notes", list_json(model.notes)},
                                    {"comparison", comparison_json("mesh", rows)}}));
    return 0;
  }
  fmt::print("{}", comparison_table("mesh", rows).text());
  for (const std::string& note : model.notes) print_fitted("\n" + note + "\n");
  return 0;
}

void check_combination(const PlanArguments& a) {
  if (a.meshes.size() < 2) return;
  if (a.machine.empty())
    throw std::runtime_error(fmt::format(
        "--mesh has {} meshes, which are compared on a machine; add --machine", a.meshes.size()));
  for (const auto& [given, name] :
       {std::pair(a.compare, "--compare"), std::pair(a.explain, "--explain"),
        std::pair(a.memory > 0, "--memory"), std::pair(!a.trace.empty(), "--trace"),
        std::pair(!a.timeline.empty(), "--timeline")})
    if (given)
      throw std::runtime_error(
          fmt::format("{} is for one mesh, but --mesh has {}; give one", name, a.meshes.size()));
}

int run(PlanArguments a) {
  const auto now = [] { return std::chrono::steady_clock::now(); };
  check_combination(a);
  LongWork work;
  work.show("plan: reading " + a.model);
  const ModelStages model = read_model(a);
  std::optional<Machine> machine;
  if (!a.machine.empty()) {
    machine.emplace(a.machine);
    a.machine_text = machine_text(a.machine);
  }
  if (a.device.empty()) a.device = machine && machine->gpu() ? "cuda" : "host";
  const auto start = now();
  if (a.meshes.size() > 1) return compare_meshes(a, model, *machine, work);
  Report r;
  work.show("plan: " + a.model);
  if (a.memory > 0) {
    r.memory = choose_under_limit(a, model, machine ? &*machine : nullptr, a.memory);
    a.chunk_bytes = r.memory->chunk_bytes;
    a.window = r.memory->window;
    a.commit = r.memory->commit;
  }
  r.planned = plan_model(a, model, 0);
  r.notes = model.notes;
  if (machine) {
    work.show(fmt::format("plan: a step on {} ranks of {}", r.planned.world, a.machine));
    const muonrt_plan_t* plan = r.planned.stages[r.planned.shown].plan.get();
    const muonrt_plan_t* largest = r.planned.stages[r.planned.largest_stage()].plan.get();
    r.machine = machine->answer(plan, r.planned.largest(), !a.trace.empty() || !a.timeline.empty());
    write_pictures(a, r.planned, *r.machine);
    if (a.compare) r.strategies = machine->compare(plan, *r.machine);
    if (a.explain) r.explanation = machine->explain(plan, *r.machine, largest, r.planned.largest());
  }
  r.seconds = std::chrono::duration<double>(now() - start).count();
  work.clear();
  if (r.planned.frozen > 0)
    r.notes.push_back(fmt::format("{} frozen tensors are not included", r.planned.frozen));
  (a.json ? print_json : print_text)(a, r);
  return 0;
}

}  // namespace

void add_plan(CLI::App& app, Work& work) {
  auto* command = app.add_subcommand(
      "plan", "the plan of a step: owners, chunks, bytes, memory, balance; moves no data");
  auto a = std::make_shared<PlanArguments>();
  add_options(command, *a);
  command->footer(
      "Example: muonrt plan --model deepseek-v3 --mesh dp=16,fsdp=8,tp=4 --experts ep=32,efsdp=4 "
      "--pp 8 --dtype bf16\n"
      "Example: muonrt plan --model llama3-70b --mesh fsdp=512 --dtype bf16 --machine h100 "
      "--compare");
  command->callback([=, &work] { work = [=] { return run(*a); }; });
}

}  // namespace muonrt::tool
