#include "plan/plan.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <utility>

#include "command/command.hpp"
#include "command/plan/model_plan.hpp"
#include "command/validators.hpp"
#include "optimizer/consistency_check.hpp"
#include "optimizer/problem.hpp"
#include "pipeline/batches.hpp"
#include "show/table.hpp"

namespace muonrt::tool {

namespace {

struct Arguments {
  std::string model = "gpt2-124m", mesh = "dp=2,fsdp=4";
  std::string device = "host";
  std::optional<int64_t> chunk_bytes;  // absent: the default of the device
  int window = PlanOptions{}.window;
  std::string commit = "atomic", transport_dtype = "bf16", replica_mode = "once";
  PlacementWords placements;
  int max_peers = 0;
  std::optional<double> flops, bytes, message_seconds;  // of a rank's machine
  int64_t rows = 20;
  bool json = false;
};

/// `rates`, except for those given on the command line.
MachineRates rates_of(const Arguments& a, const MachineRates& rates) {
  return {a.flops.value_or(rates.flops), a.bytes.value_or(rates.bytes),
          a.message_seconds.value_or(rates.message_seconds)};
}

/// Bytes of scratch memory of each rank.
std::vector<int64_t> scratch_of(const Plan& plan, const OptimizerSettings& settings) {
  const std::vector<NewtonSchulz> methods = make_newton_schulz(settings);
  if (settings.device == DeviceKind::kCuda) return scratch_bytes(plan, methods, CudaRules(), false);
  return scratch_bytes(plan, methods, HostRules(), false);
}

int run(const Arguments& a) {
  const std::vector<ModelTensor> tensors = model_tensors(a.model);
  const OptimizerSettings settings =
      model_settings(a.device == "cuda" ? DeviceKind::kCuda : DeviceKind::kHost);
  PlanOptions options;
  options.chunk_bytes = a.chunk_bytes.value_or(settings.chunk_bytes);
  options.window = a.window;
  options.commit = a.commit == "eager" ? CommitMode::kEager : CommitMode::kAtomic;
  options.transport_dtype = a.transport_dtype == "f32" ? DType::kF32 : DType::kBF16;
  if (a.replica_mode == "each") options.replica_mode = ReplicaMode::kEach;
  if (a.replica_mode == "auto") options.replica_mode = ReplicaMode::kAuto;
  if (a.replica_mode == "every_rank") options.replica_mode = ReplicaMode::kEveryRank;
  options.max_peers = a.max_peers;
  options.rates = rates_of(a, a.device == "cuda" ? kGpuRates : MachineRates());
  if (settings.device == DeviceKind::kCuda) options.least_part = kGpuLeastPart;
  const double start = now();
  const Plan plan(model_problem(tensors, a.mesh, options, a.placements, settings));
  const double seconds = now() - start;
  const std::vector<int64_t> scratch = scratch_of(plan, settings);
  const std::vector<int64_t> checks = consistency_check_bytes(plan, settings);
  const ModelTotals total = totals(tensors);
  if (a.json) {
    const std::string model =
        json_object({{"name", json_text(a.model)},
                     {"tensors", std::to_string(total.tensors)},
                     {"parameters", std::to_string(total.elements)},
                     {"muon_tensors", std::to_string(total.muon_tensors)},
                     {"muon_matrices", std::to_string(total.muon_matrices)},
                     {"muon_parameters", std::to_string(total.muon_elements)}});
    fmt::print("{}\n", json_object({{"model", model},
                                    {"mesh", json_text(a.mesh)},
                                    {"seconds", fmt::format("{}", seconds)},
                                    {"plan", plan.json(scratch, checks)}}));
    return 0;
  }
  fmt::print("model       {}: {} parameters in {} tensors; {} matrices with {} of them for Muon\n",
             a.model, cell::grouped(total.elements).text, total.tensors, total.muon_matrices,
             cell::grouped(total.muon_elements).text);
  fmt::print("mesh        {}\n{}", a.mesh, plan.describe(a.rows, scratch, checks));
  fmt::print("\nPlanned in {:.3f} s.\n", seconds);
  return 0;
}

/// Options that describe the tensors and their layouts.
void add_problem(CLI::App* command, Arguments& a) {
  command
      ->add_option("--model,--shapes", a.model,
                   fmt::format("{}, or shapes: 768x768x4,3072x768", fmt::join(model_names(), ", ")))
      ->capture_default_str();
  command
      ->add_option(
          "--mesh", a.mesh,
          "name=size,...: fsdp or dp_shard cuts the rows of matrices, tp their columns, ep "
          "distributes experts, ddp holds partial gradients, dp or dp_replicate replicates")
      ->capture_default_str();
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
  with_default(*command, "--device", a.device,
               "host or cuda: selects defaults and scratch; the device is not needed",
               CLI::IsMember({"host", "cuda"}));
  with_default(*command, "--max-peers", a.max_peers,
               fmt::format("most peers to which an owner sends an update directly; with more, "
                           "some of them forward it; 0: {}",
                           kMaxPeers),
               nonnegative());
  command
      ->add_option(
          "--chunk-bytes", a.chunk_bytes,
          fmt::format("budget of a chunk at an owner (default {} on the host, {} on a GPU)",
                      model_settings(DeviceKind::kHost).chunk_bytes,
                      model_settings(DeviceKind::kCuda).chunk_bytes))
      ->check(positive());
  with_default(*command, "--window", a.window, "chunks in flight", CLI::Range(1, 64));
  with_default(*command, "--commit", a.commit, "atomic or eager",
               CLI::IsMember({"atomic", "eager"}));
  with_default(
      *command, "--replica-mode", a.replica_mode,
      "once: a replicated matrix is orthogonalized once for all replicas; each: once in every "
      "replica; auto: the cheaper of the two by a cost model, which is printed; every_rank: every "
      "rank gathers and orthogonalizes every matrix",
      CLI::IsMember({"once", "each", "auto", "every_rank"}));
  with_default(*command, "--transport-dtype", a.transport_dtype, "bf16 or f32",
               CLI::IsMember({"bf16", "f32"}));
}

void add_rates(CLI::App* command, Arguments& a) {
  const auto rate = [&](const char* name, std::optional<double>& to, double host, double gpu,
                        double least, const char* what) {
    command
        ->add_option(
            name, to,
            fmt::format("for --replica-mode auto: {} (default {} on the host, {} on a GPU)", what,
                        host, gpu))
        ->check(number_between(least, 1e30));
  };
  constexpr MachineRates kHost;
  rate("--machine-flops", a.flops, kHost.flops, kGpuRates.flops, 1e-9,
       "FLOP/s of a rank in matrix products");
  rate("--machine-bytes", a.bytes, kHost.bytes, kGpuRates.bytes, 1e-9,
       "bytes/s that a rank sends or receives");
  rate("--machine-message-seconds", a.message_seconds, kHost.message_seconds,
       kGpuRates.message_seconds, 0, "seconds of a message in addition to its bytes");
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
  command->footer("Example: muonrt plan --model llama3-8b --mesh dp=2,fsdp=8,tp=4");
  command->callback([=, &work] { work = [=] { return run(*a); }; });
}

}  // namespace muonrt::tool
