#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <utility>

#include "command/command.hpp"
#include "command/plan/machine.hpp"
#include "command/plan/plan_input.hpp"
#include "command/plan/stages.hpp"
#include "command/progress.hpp"
#include "command/validators.hpp"
#include "opt_json/output_file.hpp"
#include "show/fit.hpp"
#include "show/table.hpp"
#include "show/timeline.hpp"

namespace muonrt::tool {

namespace {

struct Arguments {
  std::string model = "gpt2-124m", mesh = "dp=2,fsdp=4", experts, config;
  int64_t stages = 1;
  std::optional<int64_t> stage;  // to describe; absent: the one with the most work
  std::string device;            // "": that of the machine, or host
  std::string machine, trace, timeline;
  std::string dtype = "f32", grad_dtype, master = "auto";
  std::optional<int64_t> chunk_bytes;  // absent: the default of the device
  std::optional<int64_t> window;
  std::string commit, transport_dtype, replica_mode;  // "": the default
  PlacementWords placements;
  std::optional<int64_t> max_peers;
  std::optional<double> flops, bytes, message_seconds;  // of a rank's machine
  int64_t rows = 20;
  bool json = false;
};

using Words = std::vector<std::pair<const char*, int32_t>>;

/// The value of the C ABI that belongs to a word which CLI11 has checked.
int32_t value_of(const Words& words, const std::string& word) {
  for (const auto& [name, value] : words)
    if (word == name) return value;
  return 0;
}

std::vector<std::string> names_of(const Words& words) {
  std::vector<std::string> out;
  for (const auto& [name, value] : words) out.emplace_back(name);
  return out;
}

const Words kDTypes = {{"f32", MUONRT_DTYPE_F32}, {"bf16", MUONRT_DTYPE_BF16}};
const Words kCommits = {{"atomic", MUONRT_COMMIT_ATOMIC}, {"eager", MUONRT_COMMIT_EAGER}};
const Words kReplicaModes = {{"once", MUONRT_REPLICA_MODE_ONCE},
                             {"each", MUONRT_REPLICA_MODE_EACH},
                             {"auto", MUONRT_REPLICA_MODE_AUTO},
                             {"every_rank", MUONRT_REPLICA_MODE_EVERY_RANK}};
const Words kMasters = {
    {"auto", MUONRT_MASTER_AUTO},           {"none", MUONRT_MASTER_NONE},
    {"owned", MUONRT_MASTER_OWNED},         {"caller", MUONRT_MASTER_CALLER},
    {"remainder", MUONRT_MASTER_REMAINDER}, {"stochastic", MUONRT_MASTER_STOCHASTIC}};

/// The options of the command line over those of opt.json.
OptimizerOptions options_of(const Arguments& a, OptimizerOptions o) {
  // The struct takes 0 as the default of the device.
  constexpr double kNoSeconds = 1e-30;
  o.general.device = a.device == "cuda" ? MUONRT_DEVICE_CUDA : MUONRT_DEVICE_HOST;
  muonrt_tuning_options_t& t = o.tuning;
  if (a.chunk_bytes) t.chunk_bytes = *a.chunk_bytes;
  if (a.window) t.window = static_cast<int32_t>(*a.window);
  if (a.max_peers) t.max_peers = static_cast<int32_t>(*a.max_peers);
  if (!a.commit.empty()) t.commit = value_of(kCommits, a.commit);
  if (!a.transport_dtype.empty()) t.transport_dtype = value_of(kDTypes, a.transport_dtype);
  if (!a.replica_mode.empty()) t.replica_mode = value_of(kReplicaModes, a.replica_mode);
  if (a.flops) t.machine_flops = *a.flops;
  if (a.bytes) t.machine_bytes = *a.bytes;
  if (a.message_seconds) t.machine_message_seconds = std::max(*a.message_seconds, kNoSeconds);
  return o;
}

/// One stage with its plan.
struct PlannedStage {
  int64_t first_layer = 0, layers = 0;
  ModelTotals totals;
  Plan plan;
  muonrt_plan_summary_t summary;
  muonrt_plan_rank_t largest;  // the rank with the most memory
};

PlannedStage plan_stage(const Arguments& a, const Stage& stage, const PlanMeshes& meshes,
                        const StepConfig* config, int64_t& frozen) {
  const TensorTypes types = {value_of(kDTypes, a.dtype), value_of(kDTypes, a.grad_dtype),
                             value_of(kMasters, a.master)};
  const PlanInput input(stage.tensors, meshes, a.placements, types, config);
  Plan plan = input.plan(options_of(a, input.options()));
  const muonrt_plan_summary_t summary = plan.summary();
  const muonrt_plan_rank_t largest = plan.rank(summary.largest_rank);
  frozen += input.frozen();
  return {stage.first_layer, stage.layers, input.totals(), std::move(plan), summary, largest};
}

Table table_of(const std::vector<PlannedStage>& stages) {
  Table table({{"stage", "stage"},
               {"first_layer", "first layer"},
               {"layers", "layers"},
               {"parameters", "parameters"},
               {"matrices", "matrices"},
               {"makespan_cost", "busiest (G)"},
               {"moved_bytes", "moved"},
               {"total_bytes", "memory"}});
  for (size_t s = 0; s < stages.size(); ++s) {
    const PlannedStage& of = stages[s];
    table.add(
        {cell::count(static_cast<int64_t>(s)),
         cell::count(of.first_layer),
         cell::count(of.layers),
         cell::grouped(of.totals.elements),
         cell::count(of.summary.matrices),
         {fmt::format("{:.3f}", of.summary.makespan / 1e9), fmt::format("{}", of.summary.makespan)},
         cell::bytes(of.summary.moved_bytes),
         cell::bytes(of.largest.total_bytes)});
  }
  return table;
}

/// The index of the stage with the largest value.
template <class Value>
size_t largest(const std::vector<PlannedStage>& stages, const Value& value) {
  size_t out = 0;
  for (size_t s = 1; s < stages.size(); ++s)
    if (value(stages[s]) > value(stages[out])) out = s;
  return out;
}

ModelTotals sum_of(const std::vector<PlannedStage>& stages) {
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

void print_json(const Arguments& a, const PlanMeshes& meshes,
                const std::vector<PlannedStage>& stages, size_t shown,
                const std::vector<std::string>& notes, const MachineAnswer* machine,
                double seconds) {
  const ModelTotals total = sum_of(stages);
  const std::string model = json_object({{"name", json_text(a.model)},
                                         {"tensors", std::to_string(total.tensors)},
                                         {"parameters", std::to_string(total.elements)},
                                         {"muon_tensors", std::to_string(total.muon_tensors)},
                                         {"muon_matrices", std::to_string(total.muon_matrices)},
                                         {"muon_parameters", std::to_string(total.muon_elements)}});
  std::string said;
  for (const std::string& note : notes) said += (said.empty() ? "" : ",") + json_text(note);
  std::vector<std::pair<std::string, std::string>> fields = {
      {"model", model}, {"mesh", json_text(meshes.text())}, {"notes", "[" + said + "]"}};
  if (stages.size() > 1) {
    fields.emplace_back("stages", table_of(stages).json());
    fields.emplace_back("stage", std::to_string(shown));
  }
  if (machine) fields.emplace_back("machine", machine->json);
  fields.emplace_back("seconds", fmt::format("{}", seconds));
  fields.emplace_back("plan", stages[shown].plan.describe(MUONRT_FORMAT_JSON));
  fmt::print("{}\n", json_object(fields));
}

void print_text(const Arguments& a, const PlanMeshes& meshes,
                const std::vector<PlannedStage>& stages, size_t shown,
                const std::vector<std::string>& notes, const MachineAnswer* machine,
                double seconds) {
  std::string out;
  if (machine) out += fmt::format("{}\n({})\n\n", machine->headline, machine->note);
  const ModelTotals total = sum_of(stages);
  out += fmt::format(
      "model       {}: {} parameters in {} tensors; {} matrices with {} of them for Muon\n",
      a.model, cell::grouped(total.elements).text, total.tensors, total.muon_matrices,
      cell::grouped(total.muon_elements).text);
  for (const std::string& note : notes) out += fmt::format("            {}\n", note);
  out += fmt::format("mesh        {}\n", meshes.text());
  if (stages.size() > 1) {
    const auto count = static_cast<int64_t>(stages.size());
    out += fmt::format("stages      {} of {} ranks, {} ranks in total\n\n{}\n", count,
                       meshes.world(), count * meshes.world(), table_of(stages).text());
    const size_t most =
        largest(stages, [](const PlannedStage& s) { return s.largest.total_bytes; });
    out += fmt::format("Stage {} needs the most memory. The plan of stage {}{}:\n\n", most, shown,
                       a.stage ? "" : ", which has the most work");
  }
  print_fitted(out + fmt::format("{}\nPlanned in {:.3f} s.\n",
                                 stages[shown].plan.describe(MUONRT_FORMAT_TEXT, a.rows), seconds));
}

void write_pictures(const Arguments& a, const PlanMeshes& meshes, const MachineAnswer& answer) {
  if (!a.trace.empty()) write_text_file(a.trace, answer.trace);
  if (a.timeline.empty()) return;
  Timeline picture;
  picture.title =
      fmt::format("{} on {} ranks of {} ({})", a.model, meshes.world(), a.machine, meshes.text());
  picture.note = "modelled";
  picture.spans = last_step(answer.trace);
  write_text_file(a.timeline, picture.svg());
}

int run(Arguments a) {
  const auto now = [] { return std::chrono::steady_clock::now(); };
  LongWork work;
  work.show(fmt::format("plan: reading {}", a.model));
  std::vector<std::string> notes;
  std::optional<StepConfig> config;
  if (!a.config.empty()) config = read_config(a.config);
  const std::vector<Stage> parts = pipeline_stages(model_tensors(a.model, &notes), a.stages);
  if (a.stage && *a.stage >= a.stages)
    throw std::runtime_error(fmt::format("--stage is {}, but --pp is {}; use 0 to {}", *a.stage,
                                         a.stages, a.stages - 1));
  const PlanMeshes meshes(a.mesh, a.experts);
  const bool experts = std::any_of(parts.begin(), parts.end(), [](const Stage& s) {
    return std::any_of(s.tensors.begin(), s.tensors.end(),
                       [](const ModelTensor& t) { return t.stack(); });
  });
  if (!a.experts.empty() && !experts)
    throw std::runtime_error(fmt::format(
        "--experts is '{}', but the model '{}' has no experts; leave it out", a.experts, a.model));
  std::optional<Machine> machine;
  if (!a.machine.empty()) machine.emplace(a.machine);
  if (a.device.empty()) a.device = machine && machine->gpu() ? "cuda" : "host";
  const auto start = now();
  std::vector<PlannedStage> stages;
  int64_t frozen = 0;
  for (const Stage& part : parts) {
    work.show(fmt::format("plan: {} on {} ranks, stage {} of {}", a.model, meshes.world(),
                          stages.size() + 1, parts.size()));
    stages.push_back(plan_stage(a, part, meshes, config ? &*config : nullptr, frozen));
  }
  const size_t busiest = largest(stages, [](const PlannedStage& s) { return s.summary.makespan; });
  const size_t shown = a.stage ? static_cast<size_t>(*a.stage) : busiest;
  std::optional<MachineAnswer> answered;
  if (machine) {
    const size_t most =
        largest(stages, [](const PlannedStage& s) { return s.largest.total_bytes; });
    work.show(fmt::format("plan: a step on {} ranks of {}", meshes.world(), a.machine));
    answered = machine->answer(stages[shown].plan.get(), stages[most].largest,
                               !a.trace.empty() || !a.timeline.empty());
    write_pictures(a, meshes, *answered);
  }
  const double seconds = std::chrono::duration<double>(now() - start).count();
  work.clear();
  if (frozen > 0) notes.push_back(fmt::format("{} frozen tensors are not included", frozen));
  (a.json ? print_json : print_text)(a, meshes, stages, shown, notes,
                                     answered ? &*answered : nullptr, seconds);
  return 0;
}

/// Options that describe the tensors and their layouts.
void add_problem(CLI::App* command, Arguments& a) {
  command
      ->add_option(
          "--model,--shapes", a.model,
          fmt::format("{}; a config.json of Hugging Face, *.safetensors, "
                      "*.safetensors.index.json, a JSON {{\"name\": shape}}, or a folder with "
                      "one of them; or shapes: 768x768x4,3072x768",
                      fmt::join(model_names(), ", ")))
      ->capture_default_str();
  command->add_option("--config", a.config,
                      "opt.json with roles and settings by name (default: roles follow from the "
                      "names)");
  command
      ->add_option(
          "--mesh", a.mesh,
          mesh_help("shards the outputs or inputs of matrices (of a list of shapes the columns)",
                    "distributes experts") +
              ", and gradients are partial over ddp")
      ->capture_default_str();
  command->add_option("--experts", a.experts,
                      "mesh of the stacks of experts, over the same ranks, such as ep=32,efsdp=4; "
                      "ranks that it leaves out hold replicas (default: --mesh)");
  command
      ->add_option("--pp", a.stages,
                   "pipeline stages, each with the ranks of --mesh and a part of the layers")
      ->capture_default_str()
      ->check(CLI::Range(1, 1024));
  command->add_option("--stage", a.stage, "stage to describe (default: the one with the most work)")
      ->check(nonnegative());
  with_default(*command, "--dtype", a.dtype, "of parameters: f32 or bf16",
               CLI::IsMember(names_of(kDTypes)));
  command->add_option("--grad-dtype", a.grad_dtype, "of gradients (default: --dtype)")
      ->check(CLI::IsMember(names_of(kDTypes)));
  with_default(*command, "--master", a.master,
               "auto (owned for bf16, none for f32), none, owned, caller, remainder or stochastic: "
               "how bits that --dtype cannot hold are kept",
               CLI::IsMember(names_of(kMasters)));
  command->add_option("--placements", a.placements.params,
                      "instead of the names: \"R,S(0)\" for each mesh dimension, for every tensor "
                      "(a dimension that a tensor lacks is not cut), or as DTensor prints them; P: "
                      "ranks hold partial gradients");
  command->add_option(
      "--grad-placements", a.placements.grads,
      "the same for the gradients, if their layout differs from that of the parameters");
  with_default(*command, "--reading", a.placements.reading, "of placements: literal or ordered",
               CLI::IsMember({"literal", "ordered"}));
}

/// Options of an optimizer that affect the plan.
void add_settings(CLI::App* command, Arguments& a) {
  const auto choice = [&](const char* name, std::string& to, const Words& words,
                          const std::string& what) {
    command->add_option(name, to, what)->check(CLI::IsMember(names_of(words)));
  };
  command
      ->add_option("--device", a.device,
                   "host or cuda: selects defaults and scratch; the device is not needed (default: "
                   "that of --machine, or host)")
      ->check(CLI::IsMember({"host", "cuda"}));
  CLI::Option* const machine = command->add_option(
      "--machine", a.machine,
      fmt::format("prints the time of a step on {}, or on the machine of a file "
                  "*.json (tools/machines)",
                  machine_names()));
  command
      ->add_option("--trace", a.trace,
                   "file for a Chrome trace (Perfetto) of the step that "
                   "--machine models: all simulated ranks")
      ->needs(machine);
  command->add_option("--timeline", a.timeline, "file for a picture (SVG) of the same")
      ->needs(machine);
  command
      ->add_option("--max-peers", a.max_peers,
                   "most peers to which an owner sends an update directly; with more, some of them "
                   "forward it (default, or 0: 64)")
      ->check(CLI::Range(0, 1 << 30));
  command
      ->add_option("--chunk-bytes", a.chunk_bytes,
                   "budget of a chunk at an owner (default 64 MiB on the host, 256 MiB on a GPU)")
      ->check(positive());
  command->add_option("--window", a.window, "chunks in flight (default 3)")
      ->check(CLI::Range(1, 64));
  choice("--commit", a.commit, kCommits, "atomic or eager (default atomic)");
  choice(
      "--replica-mode", a.replica_mode, kReplicaModes,
      "once: a replicated matrix is orthogonalized once for all replicas (default); each: once in "
      "every replica; auto: the cheaper of the two by a cost model, which is printed; every_rank: "
      "every rank gathers and orthogonalizes every matrix");
  choice("--transport-dtype", a.transport_dtype, kDTypes, "bf16 or f32 (default bf16)");
}

void add_rates(CLI::App* command, Arguments& a) {
  const auto rate = [&](const char* name, std::optional<double>& to, const char* host,
                        const char* gpu, double least, const char* what) {
    command
        ->add_option(
            name, to,
            fmt::format("for --replica-mode auto: {} (default {} on the host, {} on a GPU)", what,
                        host, gpu))
        ->check(number_between(least, 1e30));
  };
  rate("--machine-flops", a.flops, "5e10", "3e14", 1e-9, "FLOP/s of a rank in matrix products");
  rate("--machine-bytes", a.bytes, "5e9", "5e10", 1e-9, "bytes/s that a rank sends or receives");
  rate("--machine-message-seconds", a.message_seconds, "20e-6", "15e-6", 0,
       "seconds of a message in addition to its bytes");
}

}  // namespace

void add_plan(CLI::App& app, Work& work) {
  auto* command = app.add_subcommand(
      "plan", "the plan of a step: owners, chunks, bytes, memory, balance; moves no data");
  auto a = std::make_shared<Arguments>();
  add_problem(command, *a);
  add_settings(command, *a);
  add_rates(command, *a);
  with_default(*command, "--rows", a->rows, "rows of each table; 0: all", nonnegative());
  command->add_flag("--json", a->json, "print JSON, every row");
  command->footer(
      "Example: muonrt plan --model deepseek-v3 --mesh dp=16,fsdp=8,tp=4 --experts ep=32,efsdp=4 "
      "--pp 8 --dtype bf16");
  command->callback([=, &work] { work = [=] { return run(*a); }; });
}

}  // namespace muonrt::tool
