#include "command/plan/plan_arguments.hpp"

#include <fmt/format.h>

#include <utility>

#include "command/plan/machine.hpp"
#include "command/validators.hpp"

namespace muonrt::tool {

namespace {

using Words = std::vector<std::pair<const char*, int32_t>>;

/// Returns the C value for a word that CLI11 has already checked.
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

/// Adds the options that describe the tensors and their layouts.
void add_problem(CLI::App* command, PlanArguments& a) {
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
          "--mesh", a.meshes,
          mesh_help("shards the outputs or inputs of matrices (of a list of shapes the columns)",
                    "distributes experts") +
              ", and gradients are partial over ddp; several, separated by ';' or each with "
              "--mesh: one row for each (with --machine)")
      ->delimiter(';')
      ->allow_extra_args(false)
      ->capture_default_str();
  command
      ->add_option("--experts", a.experts,
                   "mesh of the stacks of experts, over the same ranks, such as ep=32,efsdp=4; "
                   "ranks that it leaves out hold replicas (default: --mesh); with several meshes "
                   "one for all, or one for each")
      ->delimiter(';')
      ->allow_extra_args(false);
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

/// Adds the options of an optimizer that affect the plan.
void add_settings(CLI::App* command, PlanArguments& a) {
  const auto choice = [&](const char* name, std::string& to, const Words& words,
                          const std::string& what) {
    command->add_option(name, to, what)->check(CLI::IsMember(names_of(words)));
  };
  command
      ->add_option("--device", a.device,
                   "host (iterates in f32 by default) or cuda: selects defaults and scratch; the "
                   "device is not needed (default: "
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
  command
      ->add_option("--window", a.window, "chunks in flight (default 3; on a single rank always 1)")
      ->check(CLI::Range(1, 64));
  choice("--commit", a.commit, kCommits, "atomic or eager (default atomic)");
  choice(
      "--replica-mode", a.replica_mode, kReplicaModes,
      "once: a replicated matrix is orthogonalized once for all replicas (default); each: once in "
      "every replica; auto: the cheaper of the two by a cost model of --machine, which is printed; "
      "every_rank: every rank gathers and orthogonalizes every matrix");
  choice("--transport-dtype", a.transport_dtype, kDTypes, "bf16 or f32 (default bf16)");
}

/// Adds the options for additional output, most of which describes the step that --machine models.
void add_questions(CLI::App* command, PlanArguments& a) {
  CLI::Option* const machine = command->get_option("--machine");
  command
      ->add_flag("--explain", a.explain,
                 "explains each term of the time and of the memory by its numbers")
      ->needs(machine);
  command
      ->add_flag("--compare", a.compare,
                 "compares the step with those of other ways to distribute the matrices")
      ->needs(machine);
  command
      ->add_option("--memory", a.memory,
                   "limit of a rank, such as 70GiB: chooses --chunk-bytes, --window and --commit "
                   "under it, with --machine for the fastest step; what is stated is kept")
      ->check(positive());
}

}  // namespace

OptimizerOptions options_of(const PlanArguments& a, OptimizerOptions o) {
  o.general.device = a.device == "cuda" ? MUONRT_DEVICE_CUDA : MUONRT_DEVICE_HOST;
  muonrt_tuning_options_t& t = o.tuning;
  // Do not use this processor's default, because the plan may be for another processor.
  if (o.general.device == MUONRT_DEVICE_HOST && t.iteration_dtype == 0)
    t.iteration_dtype = MUONRT_DTYPE_F32;
  if (a.chunk_bytes) t.chunk_bytes = *a.chunk_bytes;
  if (a.window) t.window = static_cast<int32_t>(*a.window);
  if (a.max_peers) t.max_peers = static_cast<int32_t>(*a.max_peers);
  if (!a.commit.empty()) t.commit = value_of(kCommits, a.commit);
  if (!a.transport_dtype.empty()) t.transport_dtype = value_of(kDTypes, a.transport_dtype);
  if (!a.replica_mode.empty()) t.replica_mode = value_of(kReplicaModes, a.replica_mode);
  if (!a.machine_text.empty()) t.machine = a.machine_text.c_str();
  return o;
}

TensorTypes types_of(const PlanArguments& a) {
  return {value_of(kDTypes, a.dtype), value_of(kDTypes, a.grad_dtype),
          value_of(kMasters, a.master)};
}

void add_options(CLI::App* command, PlanArguments& a) {
  add_problem(command, a);
  add_settings(command, a);
  add_questions(command, a);
  with_default(*command, "--rows", a.rows, "rows of each table; 0: all", nonnegative());
  command->add_flag("--json", a.json, "print JSON, every row");
}

}  // namespace muonrt::tool
