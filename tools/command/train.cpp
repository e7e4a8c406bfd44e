#include "train/train.hpp"

#include <CLI/CLI.hpp>
#include <cstring>
#include <memory>

#include "command/command.hpp"
#include "command/launch.hpp"
#include "command/plan/rank_memory.hpp"
#include "command/run_device.hpp"
#include "command/stop_signals.hpp"
#include "command/validators.hpp"
#include "train/run.hpp"

namespace muonrt::tool {

namespace {

/// GPU memory that one rank uses for the optimizer's parameters and gradients.
class GpuMemory : public train::DeviceMemory {
 public:
  explicit GpuMemory(int rank) : memory_(/*cuda=*/true, rank) {}
  float* make(int64_t elements) override {
    return reinterpret_cast<float*>(memory_.allocate_far(elements * kFloat));
  }
  void put(float* to, const std::vector<float>& from) override {
    memory_.write(
        to, {reinterpret_cast<const unsigned char*>(from.data()), from.size() * sizeof(float)});
  }
  void get(std::vector<float>& to, const float* from) override {
    const auto bytes = memory_.read(from, std::ssize(to) * kFloat);
    if (!bytes.empty()) std::memcpy(to.data(), bytes.data(), bytes.size());
  }

 private:
  static constexpr int64_t kFloat = sizeof(float);
  RankMemory memory_;
};

int run_on(Comm& comm, const RunDevice& where, const train::Options& options,
           const train::Corpus& corpus) {
  return on_device(comm, where, [&](Comm& between) {
    train::Place place;
    place.comm = &between;
    if (where.cuda()) place.make_memory = [&] { return std::make_unique<GpuMemory>(comm.rank()); };
    place.products = where.device + (where.portable_gemm ? " --portable-gemm" : "");
    if (where.cuda()) place.products += " --symmetric " + where.symmetric;
    place.set_device = [&](OptimizerOptions& o) { set_device(o, where, comm.rank()); };
    return train::train(comm, options, corpus, stderr, place);
  });
}

int run(const train::Options& options, int ranks, const RunDevice& where, const ThreadLink& link) {
  train::check_options(options);
  // A signal stops the run after the current step, so that the command still writes its results.
  const StopSignals signals(train::request_stop);
  const train::Corpus corpus(train::load_text(options.data), train::preset(options.preset).context);
  return launch(
      ranks, where.timeout, [&](Comm& comm) { return run_on(comm, where, options, corpus); }, link);
}

}  // namespace

void add_train(CLI::App& app, Work& work) {
  auto* command = app.add_subcommand("train", "train a byte-level GPT on a text, over ranks");
  auto o = std::make_shared<train::Options>();
  auto ranks = std::make_shared<int>(0);
  auto where = std::make_shared<RunDevice>();
  auto link = std::make_shared<ThreadLink>();
  command->add_option("--ranks", *ranks, "ranks as threads of this process (without mpirun)")
      ->check(CLI::Range(1, 1024));
  command->add_option("--mesh", o->mesh, mesh_help("shards dimension 1 of matrices", "replicates"));
  command
      ->add_option("--optimizer", o->optimizer,
                   "names of `muonrt info optimizers` or files of opt.json, with commas between; "
                   "both: muon,adamw")
      ->capture_default_str();
  command
      ->add_option("--lr", o->lr,
                   "peak rates of the matrices, one for each optimizer or one for all; the others "
                   "in proportion (default: their files')")
      ->delimiter(',');
  command->add_option("--qk-clip", o->qk_clip,
                      "clip query and key heads whose largest attention logit is above this "
                      "(0: as the optimizers say)");
  command->add_option("--preset", o->preset, "model: tiny, small or medium")->capture_default_str();
  command->add_option("--steps", o->steps, "steps of each run")->capture_default_str();
  command->add_option("--batch", o->batch, "sequences of a step, all ranks together")
      ->capture_default_str();
  command->add_option("--seed", o->seed, "of weights and batches")
      ->check(whole_from_zero())
      ->capture_default_str();
  command->add_option("--data", o->data, "text file (default: the King James text)");
  command->add_option("--out", o->out, "folder for loss.csv, loss.svg, plan.txt, result.txt, ...")
      ->check(file_name());
  auto* save = command->add_option(
      "--save", o->save,
      "folder that keeps the last checkpoint: of every --save-every steps, the last one, and one "
      "that a signal stops; with one --optimizer");
  save->check(file_name());
  command->add_option("--save-every", o->save_every, "steps between checkpoints")
      ->needs(save)
      ->capture_default_str();
  command->add_flag("--overwrite", o->overwrite, "--save replaces the checkpoint of another run")
      ->needs(save);
  command
      ->add_option(
          "--resume", o->resume,
          "folder of --save to continue from, with the arguments of its run; results are "
          "bitwise identical. Ranks, --mesh, device and validations may differ, and --steps "
          "may be larger")
      ->check(file_name());
  command
      ->add_option("--trace", o->trace,
                   "file for a Chrome trace (Perfetto) of the last 4 steps of the first optimizer: "
                   "all ranks on one clock")
      ->check(file_name());
  command->add_option("--timeline", o->timeline, "file for a picture (SVG) of the last of them")
      ->check(file_name());
  command->add_option("--warmup", o->warmup, "share of the steps")->capture_default_str();
  command->add_option("--final-lr", o->final_lr, "rate of the last step, as a share of the peak")
      ->capture_default_str();
  command->add_option("--eval-every", o->eval_every, "steps between validations")
      ->capture_default_str();
  command->add_option("--eval-windows", o->eval_windows, "windows of the validation text")
      ->capture_default_str();
  command->add_flag("--json", o->json, "print the result as JSON");
  add_link_options(*command, *link);
  add_run_device_options(*command, *where);
  command->footer("Example: mpirun -n 4 muonrt train --mesh dp=2,fsdp=2 --steps 100 --out run");
  command->callback([=, &work] { work = [=] { return run(*o, *ranks, *where, *link); }; });
}

}  // namespace muonrt::tool
