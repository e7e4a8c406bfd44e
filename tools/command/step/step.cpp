#include <CLI/CLI.hpp>
#include <memory>

#include "command/command.hpp"
#include "command/launch.hpp"
#include "command/step/run.hpp"
#include "command/validators.hpp"

namespace muonrt::tool {

void add_step(CLI::App& app, Work& work) {
  auto* command =
      app.add_subcommand("step", "runs steps of the optimizer on safetensors files, over ranks");
  auto a = std::make_shared<StepArguments>();
  command
      ->add_option(
          "--params", a->params,
          "safetensors file with the whole parameters; or a folder or an index of several files")
      ->required();
  command->add_option("--grads", a->grads, "safetensors file of the gradients; one for each step")
      ->required();
  command->add_option("--config", a->config, "opt.json with the settings of the parameters")
      ->required();
  command->add_option(
      "--mesh", a->mesh,
      "name=size,... over all ranks (default: world=ranks). Placements of opt.json "
      "say what a dimension does; a rule without placements replicates, and then the "
      "names are of these: " +
          kShards + "; tp; ep; " + kReplicates);
  command
      ->add_option(
          "--out", a->out,
          "folder for the parameters, new or written by muonrt step: the files of --params "
          "and model.safetensors.index.json")
      ->required();
  shard_bytes_option(*command, a->most, "new size of the files of --out: ");
  command
      ->add_option(
          "--state-in", a->state_in,
          "checkpoint to continue from: OUT/state of an earlier run, or any of the library")
      ->check(file_name());
  command
      ->add_flag("--partial-state", a->partial_state,
                 "start with new state for parameters that --state-in does not have, and ignore "
                 "other state; prints both")
      ->needs("--state-in");
  command
      ->add_option(
          "--missing-grad", a->missing_grad,
          "a parameter without a gradient in a file: error, or sit-out (it does not change "
          "in that step)")
      ->check(CLI::IsMember({"error", "sit-out"}))
      ->capture_default_str();
  command->add_flag("--state-out", a->state_out,
                    "write a checkpoint into OUT/state, which loads on any mesh");
  command->add_option("--logits", a->logits,
                      "safetensors file of attention logits for QK-clip; one for each step");
  command
      ->add_option("--health", a->health, "file for the statistics of health_every, as JSON lines")
      ->check(file_name());
  add_run_device_options(*command, a->where);
  command->add_option("--ranks", a->ranks, "ranks as threads of this process (default: 1)")
      ->check(CLI::Range(1, 1024));
  command->add_flag("--verbose", a->verbose, "print rule, role, path and owner of each parameter");
  command->add_flag("--json", a->json, "print JSON");
  command->footer(
      "opt.json is described in tools/opt_json/KEYS.md.\n"
      "Example: mpirun -n 4 muonrt step --params in.safetensors --grads g1.safetensors --config "
      "opt.json --mesh fsdp=2,tp=2 --out step1 --state-out");
  command->callback([=, &work] {
    work = [=] {
      return launch(a->ranks, a->where.timeout, [&](Comm& comm) {
        return on_device(comm, a->where, [&](Comm& between) { return run_step(between, *a); });
      });
    };
  });
}

}  // namespace muonrt::tool
