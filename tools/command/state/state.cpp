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

constexpr const char* kOfOneKept =
    "manifest of an older checkpoint that was kept: its name in the folder";

/// Adds the options that select a checkpoint.
void add_saved(CLI::App& command, Saved& saved) {
  command.add_option("DIR", saved.folder, "folder of a checkpoint")->required()->check(file_name());
  command.add_option("--manifest", saved.manifest, kOfOneKept)->check(file_name());
}

/// Adds a subcommand. `take` adds its options, and `run` runs it.
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

/// The arguments of subcommands that only read a checkpoint.
struct Looks {
  Saved first, second;
  bool json = false;
};

void add_looks(CLI::App& state, Work& work) {
  const auto one = [](CLI::App& command, Looks& a) {
    add_saved(command, a.first);
    add_json(command, a.json);
  };
  add<Looks>(state, work, "show", "prints the manifest of a checkpoint", "run/state", one,
             [](const Looks& a) {
               show_checkpoint(a.first, a.json);
               return 0;
             });
  add<Looks>(state, work, "verify",
             "reads every byte and checks checksums, that each element exists once, that moments "
             "are finite "
             "and second moments >= 0, and the hashes of parameters. Exit code 1 after an error",
             "run/state --manifest manifest-0000000003-0000000000001000.json", one,
             [](const Looks& a) { return verify_checkpoint(a.first, a.json) ? 0 : 1; });
  add<Looks>(
      state, work, "diff",
      "compares two checkpoints of any meshes: settings, parameters, and for each tensor the "
      "elements that differ and the largest difference. Exit code 0 if they are equal, otherwise 1",
      "run/state other/state",
      [](CLI::App& command, Looks& a) {
        add_saved(command, a.first);
        command.add_option("OTHER", a.second.folder, "folder of the other checkpoint")
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
      "writes whole parameters as safetensors files with model.safetensors.index.json: F32 from "
      "master weights or remainders, otherwise as they were saved",
      "run/state --to run/model",
      [](CLI::App& command, ExportArguments& a) {
        add_saved(command, a.saved);
        command.add_option("--to", a.to, "a new or empty folder")->required()->check(file_name());
        shard_bytes_option(command, a.most)->capture_default_str();
        command.add_flag("--state", a.state,
                         "write momentum and moments, too, with state.safetensors.index.json, for "
                         "python -m muonrt.convert");
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
      "makes a checkpoint from a file of muonrt.convert, which holds the state of another "
      "optimizer. "
      "Prints its assumptions",
      "state.safetensors --params model.safetensors --step 1000 --to run/state",
      [](CLI::App& command, ImportArguments& a) {
        command.add_option("STATE", a.state, "safetensors: a file, an index or a folder")
            ->required()
            ->check(file_name());
        command
            .add_option("--params", a.params, "the parameters, in the dtypes of the new optimizer")
            ->required()
            ->check(file_name());
        command.add_option("--to", a.to, "a new folder, or one without a checkpoint")
            ->required()
            ->check(file_name());
        command.add_option("--step", a.step, "number of steps before the checkpoint")
            ->required()
            ->check(CLI::Range(int64_t{0}, int64_t{1} << 53));
        command.add_option("--momentum", a.momentum, "constant of Muon's momentum")
            ->check(number_between(0, 0.999999))
            ->capture_default_str();
        command.add_option("--beta1", a.beta1, "constant of AdamW's first moment")
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
  auto* state =
      app.add_subcommand("state", "shows, verifies, compares, exports and imports checkpoints");
  state->require_subcommand(1);
  add_looks(*state, work);
  add_export(*state, work);
  add_import(*state, work);
  state->footer(
      "A checkpoint loads on any number of ranks, mesh and placement without conversion.\n"
      "python -m muonrt.convert reads and writes files of torch.save.\n"
      "Example: muonrt state verify run/state");
}

}  // namespace muonrt::tool
