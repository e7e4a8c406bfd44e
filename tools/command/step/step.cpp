#include <CLI/CLI.hpp>
#include <memory>

#include "command/command.hpp"
#include "command/launch.hpp"
#include "command/step/run.hpp"
#include "command/validators.hpp"

namespace muonrt::tool {

void add_step(CLI::App& app, Work& work) {
  auto* command =
      app.add_subcommand("step", "steps of the optimizer on safetensors files, over ranks");
  auto a = std::make_shared<StepArguments>();
  command
      ->add_option(
          "--params", a->params,
          "safetensors file of the parameters, whole tensors; or a folder or index of several")
      ->required();
  command
      ->add_option("--grads", a->grads,
                   "safetensors file of their gradients; again for every further step")
      ->required();
  command->add_option("--config", a->config, "what each parameter is: opt.json")->required();
  command->add_option("--mesh", a->mesh, "name=size,... over all ranks (default: world=ranks)");
  command
      ->add_option("--out", a->out,
                   "folder for the parameters, a new one or one that muonrt step wrote: files as "
                   "those of --params and model.safetensors.index.json")
      ->required();
  shard_bytes_option(*command, a->most, "files of --out are cut otherwise: ");
  command
      ->add_option("--state-in", a->state_in,
                   "checkpoint to go on from: OUT/state of an earlier run, or any of the library")
      ->check(file_name());
  command->add_flag("--state-out", a->state_out,
                    "write the state, too: a checkpoint, as OUT/state, for any mesh");
  command->add_option("--logits", a->logits,
                      "safetensors file of attention logits for QK-clip; one for every step");
  command
      ->add_option("--health", a->health,
                   "where the statistics of steps that measure are written, as JSON lines")
      ->check(file_name());
  add_run_device_options(*command, a->where);
  command->add_option("--ranks", a->ranks, "ranks as threads of this process (default: 1)")
      ->check(CLI::Range(1, 1024));
  command->add_flag("--verbose", a->verbose, "a line for each parameter: rule, path, owner");
  command->add_flag("--json", a->json, "print JSON");
  command->footer(
      "opt.json is described in tools/README.md.\n"
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
