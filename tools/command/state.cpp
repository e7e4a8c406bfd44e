#include <CLI/CLI.hpp>
#include <limits>
#include <memory>

#include "command/command.hpp"
#include "command/state/diff.hpp"
#include "command/state/export.hpp"
#include "command/state/import.hpp"
#include "command/state/show.hpp"
#include "command/state/verify.hpp"
#include "command/validators.hpp"

namespace muonrt::tool {

namespace {

constexpr const char* kOfOneKept = "a checkpoint that was kept: its name in the folder";

/// The checkpoint that a subcommand is about.
void add_saved(CLI::App& command, Saved& saved) {
  command.add_option("DIR", saved.folder, "folder of a checkpoint")->required()->check(file_name());
  command.add_option("--manifest", saved.manifest, kOfOneKept)->check(file_name());
}

void add_show(CLI::App& state, Work& work) {
  auto* command = state.add_subcommand("show", "what a checkpoint holds, as its manifest says");
  struct Arguments {
    Saved saved;
    bool json = false;
  };
  auto a = std::make_shared<Arguments>();
  add_saved(*command, a->saved);
  command->add_flag("--json", a->json, "print JSON");
  command->footer("Example: muonrt state show run/state");
  command->callback([=, &work] {
    work = [=] {
      show_checkpoint(a->saved, a->json);
      return 0;
    };
  });
}

void add_verify_state(CLI::App& state, Work& work) {
  auto* command = state.add_subcommand(
      "verify",
      "reads every byte: checksums; each element there once; moments finite, second ones >= 0; "
      "parameters as their hashes say. Exit code 1 where something is wrong");
  struct Arguments {
    Saved saved;
    bool json = false;
  };
  auto a = std::make_shared<Arguments>();
  add_saved(*command, a->saved);
  command->add_flag("--json", a->json, "print JSON");
  command->footer(
      "Example: muonrt state verify run/state --manifest "
      "manifest-0000000003-0000000000001000.json");
  command->callback(
      [=, &work] { work = [=] { return verify_checkpoint(a->saved, a->json) ? 0 : 1; }; });
}

void add_diff(CLI::App& state, Work& work) {
  auto* command = state.add_subcommand(
      "diff",
      "how two checkpoints differ, on whatever meshes they were saved: settings, parameters; of "
      "each tensor elements and largest difference. Exit code 0: in nothing, 1: they do");
  struct Arguments {
    Saved first, second;
    bool json = false;
  };
  auto a = std::make_shared<Arguments>();
  add_saved(*command, a->first);
  command->add_option("OTHER", a->second.folder, "folder of the other")
      ->required()
      ->check(file_name());
  command->add_option("--other-manifest", a->second.manifest, kOfOneKept)->check(file_name());
  command->add_flag("--json", a->json, "print JSON");
  command->footer("Example: muonrt state diff run/state other/state");
  command->callback([=, &work] {
    work = [=] { return diff_checkpoints(a->first, a->second, a->json) ? 0 : 1; };
  });
}

void add_export(CLI::App& state, Work& work) {
  auto* command = state.add_subcommand(
      "export",
      "the parameters as whole tensors: safetensors files and model.safetensors.index.json. In F32 "
      "from master weights or remainders, else as they were saved (with_params)");
  auto a = std::make_shared<ExportArguments>();
  add_saved(*command, a->saved);
  command->add_option("--to", a->to, "folder, a new one or one without safetensors")
      ->required()
      ->check(file_name());
  command
      ->add_option("--max-shard-bytes", a->most,
                   "of the tensors of a file, unless it has one: 5000000000, 4GiB")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(int64_t{1}, std::numeric_limits<int64_t>::max()))
      ->capture_default_str();
  command->add_flag("--state", a->state,
                    "momentum and moments too, and state.safetensors.index.json: for muonrt step "
                    "--state-in and python -m muonrt.convert");
  command->add_flag("--json", a->json, "print JSON");
  command->footer("Example: muonrt state export run/state --to run/model");
  command->callback([=, &work] {
    work = [=] {
      export_checkpoint(*a);
      return 0;
    };
  });
}

void add_import(CLI::App& state, Work& work) {
  auto* command = state.add_subcommand(
      "import",
      "a checkpoint from what another optimizer kept: whole tensors named PARAMETER.KEY, as its "
      "state dict calls the keys. Prints what it assumed");
  auto a = std::make_shared<ImportArguments>();
  command->add_option("STATE", a->state, "safetensors: a file, an index or a folder")
      ->required()
      ->check(file_name());
  command->add_option("--from", a->from, "whose keys and momentum they are")
      ->required()
      ->check(CLI::IsMember(import_formats()));
  command->add_option("--params", a->params, "the parameters, in the dtypes of the optimizer to be")
      ->required()
      ->check(file_name());
  command->add_option("--to", a->to, "folder, a new one or one without a checkpoint")
      ->required()
      ->check(file_name());
  command->add_option("--step", a->step, "steps that were made")
      ->required()
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 53));
  command->add_option("--momentum", a->momentum, "what Muon's momentum was made with")
      ->check(number_between(0, 0.999999))
      ->capture_default_str();
  command->add_option("--beta1", a->beta1, "what AdamW's first moment was made with")
      ->check(number_between(0, 0.999999))
      ->capture_default_str();
  command->footer(
      "Example: muonrt state import state.safetensors --from moonlight --params "
      "model.safetensors --step 1000 --to run/state");
  command->callback([=, &work] {
    work = [=] {
      import_checkpoint(*a);
      return 0;
    };
  });
}

}  // namespace

void add_state(CLI::App& app, Work& work) {
  auto* state = app.add_subcommand("state", "checkpoints: what they hold, whether they are whole");
  state->require_subcommand(1);
  add_show(*state, work);
  add_verify_state(*state, work);
  add_diff(*state, work);
  add_export(*state, work);
  add_import(*state, work);
  state->footer(
      "Nothing is to be resharded: a checkpoint loads on any number of ranks, mesh and placement.\n"
      "Files of torch.save come and go by python -m muonrt.convert.\n"
      "Example: muonrt state verify run/state");
}

}  // namespace muonrt::tool
