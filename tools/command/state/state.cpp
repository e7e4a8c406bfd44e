#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>

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

/// A subcommand that does `run` with arguments of its own, which `take` adds.
template <class Arguments>
void add(CLI::App& state, Work& work, const char* name, const char* what, const char* example,
         const std::function<void(CLI::App&, Arguments&)>& take,
         const std::function<int(const Arguments&)>& run) {
  auto* command = state.add_subcommand(name, what);
  auto a = std::make_shared<Arguments>();
  take(*command, *a);
  command->footer(std::string("Example: muonrt state ") + name + " " + example);
  command->callback([=, &work] { work = [=] { return run(*a); }; });
}

void add_json(CLI::App& command, bool& json) { command.add_flag("--json", json, "print JSON"); }

/// Of what only looks.
struct Looks {
  Saved first, second;
  bool json = false;
};

void add_looks(CLI::App& state, Work& work) {
  const auto one = [](CLI::App& command, Looks& a) {
    add_saved(command, a.first);
    add_json(command, a.json);
  };
  add<Looks>(state, work, "show", "what a checkpoint holds, as its manifest says", "run/state", one,
             [](const Looks& a) {
               show_checkpoint(a.first, a.json);
               return 0;
             });
  add<Looks>(
      state, work, "verify",
      "reads every byte: checksums; each element there once; moments finite, second ones >= 0; "
      "parameters as their hashes say. Exit code 1 where something is wrong",
      "run/state --manifest manifest-0000000003-0000000000001000.json", one,
      [](const Looks& a) { return verify_checkpoint(a.first, a.json) ? 0 : 1; });
  add<Looks>(
      state, work, "diff",
      "how two checkpoints differ, on whatever meshes they were saved: settings, parameters; of "
      "each tensor elements and largest difference. Exit code 0: in nothing, 1: they do",
      "run/state other/state",
      [](CLI::App& command, Looks& a) {
        add_saved(command, a.first);
        command.add_option("OTHER", a.second.folder, "folder of the other")
            ->required()
            ->check(file_name());
        command.add_option("--other-manifest", a.second.manifest, kOfOneKept)->check(file_name());
        add_json(command, a.json);
      },
      [](const Looks& a) { return diff_checkpoints(a.first, a.second, a.json) ? 0 : 1; });
}

void add_export(CLI::App& state, Work& work) {
  add<ExportArguments>(
      state, work, "export",
      "the parameters as whole tensors: safetensors files and model.safetensors.index.json. In F32 "
      "from master weights or remainders, else as they were saved (with_params)",
      "run/state --to run/model",
      [](CLI::App& command, ExportArguments& a) {
        add_saved(command, a.saved);
        command.add_option("--to", a.to, "folder, a new or an empty one")
            ->required()
            ->check(file_name());
        shard_bytes_option(command, a.most)->capture_default_str();
        command.add_flag("--state", a.state,
                         "momentum and moments too, and state.safetensors.index.json: for python "
                         "-m muonrt.convert");
        add_json(command, a.json);
      },
      [](const ExportArguments& a) {
        export_checkpoint(a);
        return 0;
      });
}

void add_import(CLI::App& state, Work& work) {
  add<ImportArguments>(
      state, work, "import",
      "a checkpoint from what another optimizer kept: whole tensors named PARAMETER.KEY, as its "
      "state dict calls the keys. Prints what it assumed",
      "state.safetensors --from moonlight --params model.safetensors --step 1000 --to run/state",
      [](CLI::App& command, ImportArguments& a) {
        command.add_option("STATE", a.state, "safetensors: a file, an index or a folder")
            ->required()
            ->check(file_name());
        command.add_option("--from", a.from, "whose keys and momentum they are")
            ->required()
            ->check(CLI::IsMember(import_formats()));
        command
            .add_option("--params", a.params,
                        "the parameters, in the dtypes of the optimizer to be")
            ->required()
            ->check(file_name());
        command.add_option("--to", a.to, "folder, a new one or one without a checkpoint")
            ->required()
            ->check(file_name());
        command.add_option("--step", a.step, "steps that were made")
            ->required()
            ->check(CLI::Range(int64_t{0}, int64_t{1} << 53));
        command.add_option("--momentum", a.momentum, "what Muon's momentum was made with")
            ->check(number_between(0, 0.999999))
            ->capture_default_str();
        command.add_option("--beta1", a.beta1, "what AdamW's first moment was made with")
            ->check(number_between(0, 0.999999))
            ->capture_default_str();
      },
      [](const ImportArguments& a) {
        import_checkpoint(a);
        return 0;
      });
}

}  // namespace

void add_state(CLI::App& app, Work& work) {
  auto* state = app.add_subcommand("state", "checkpoints: what they hold, whether they are whole");
  state->require_subcommand(1);
  add_looks(*state, work);
  add_export(*state, work);
  add_import(*state, work);
  state->footer(
      "Nothing is to be resharded: a checkpoint loads on any number of ranks, mesh and placement.\n"
      "Files of torch.save come and go by python -m muonrt.convert.\n"
      "Example: muonrt state verify run/state");
}

}  // namespace muonrt::tool
