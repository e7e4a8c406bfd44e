#include "train/train.hpp"

#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <system_error>

#include "opt_json/output_file.hpp"
#include "show/timeline.hpp"
#include "train/checkpoint.hpp"
#include "train/curve_log.hpp"
#include "train/mesh.hpp"
#include "train/optimizer.hpp"
#include "train/report.hpp"
#include "train/run.hpp"

namespace muonrt::train {

namespace {

std::vector<RunPlan> plan_runs(const Options& o) {
  std::vector<RunPlan> plans;
  const std::vector<std::string> optimizers = o.optimizers();
  for (size_t i = 0; i < optimizers.size(); ++i) {
    const double given = o.lr.empty() ? 0.0 : o.lr[o.lr.size() > 1 ? i : 0];
    RunPlan& plan = plans.emplace_back();
    plan.optimizer = optimizers[i];
    plan.seed = o.seed;
    plan.lr = given > 0 ? given
                        : TrainOptimizer(optimizers[i], preset(o.preset), o.qk_clip, o.steps).lr();
    plan.later_steps = static_cast<int64_t>(optimizers.size() - 1 - i) * o.steps;
  }
  return plans;
}

// Checks that all ranks have the same text. Otherwise ranks with different files would train
// without an error.
void compare_texts(Comm& comm, const Text& text) {
  const uint64_t mine = fingerprint(text);
  std::vector<uint64_t> all(static_cast<size_t>(comm.size()));
  comm.allgather(all.data(), &mine, sizeof mine);
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    throw std::runtime_error(
        "--data: rank " + std::to_string(r) +
        " reads a different text than rank 0; pass the same file on every rank");
  }
}

/// Returns a picture of the last step.
std::string timeline(const Options& o, const Outcome& outcome) {
  const RunResult& r = outcome.results.front();
  tool::Timeline picture;
  picture.title = "Step " + std::to_string(r.steps) + " of " + outcome.plans.front().optimizer +
                  ", preset " + o.preset + ", " + std::to_string(outcome.ranks) + " ranks (" +
                  outcome.mesh + ")";
  picture.spans = tool::last_step(r.trace);
  return picture.svg();
}

/// A file that the command can write only after the run.
struct RunFile {
  std::string option, path;
  std::function<std::string()> text;
};

std::vector<RunFile> run_files(const Options& o, const Text& text, const Outcome& outcome) {
  std::vector<RunFile> files;
  const auto add = [&](const char* option, const std::string& path, auto content) {
    files.push_back({option, path, std::move(content)});
  };
  if (!o.out.empty()) {
    add("--out", o.out + "/plan.txt", [&] { return outcome.results.front().plan; });
    add("--out", o.out + "/result.txt", [&] { return result_text(o, text, outcome); });
    add("--out", o.out + "/result.json", [&] { return result_json(o, text, outcome); });
  }
  if (!o.trace.empty()) add("--trace", o.trace, [&] { return outcome.results.front().trace; });
  if (!o.timeline.empty()) add("--timeline", o.timeline, [&] { return timeline(o, outcome); });
  return files;
}

void require_writable(const Options& o, const CurveLog* log, const std::vector<RunFile>& files) {
  std::vector<tool::NamedFile> outputs, inputs;
  if (log) outputs = {{"--out", log->csv_path()}, {"--out", log->svg_path()}};
  for (const RunFile& file : files) outputs.push_back({file.option, file.path});
  if (!o.data.empty()) inputs.push_back({"--data", o.data});
  for (const std::string& name : o.optimizers()) inputs.push_back({"--optimizer", name});
  tool::require_writable(outputs, inputs);
}

}  // namespace

int train(Comm& comm, const Options& options, const Corpus& corpus, std::FILE* screen,
          const Place& place) {
  const TrainMesh mesh(options.mesh, comm.size());
  compare_texts(comm, corpus.text());
  const bool root = comm.rank() == 0;
  Outcome outcome;
  outcome.ranks = comm.size();
  outcome.mesh = mesh.text();
  outcome.plans = plan_runs(options);
  const SavedRun run{options, outcome.plans.front(), corpus.text(), place.products};
  std::string note;
  if (!options.resume.empty()) note = run.require_resumable();
  std::vector<RunFile> files;
  std::unique_ptr<CurveLog> log;
  if (root && !options.out.empty()) {
    std::error_code failed;
    std::filesystem::create_directories(options.out, failed);
    if (failed)
      throw std::runtime_error("--out: " + options.out + " cannot be created: " + failed.message() +
                               "; use a folder that you may write to");
    log =
        std::make_unique<CurveLog>(options.out, "Loss in nats per byte",
                                   describe(corpus.text()) + ", " + std::to_string(outcome.ranks) +
                                       " ranks (" + outcome.mesh + "), preset " + options.preset);
  }
  if (root) {
    files = run_files(options, corpus.text(), outcome);
    require_writable(options, log.get(), files);
  }
  FolderLock lock(nullptr, std::fclose);
  if (root && !options.save.empty()) lock = run.begin_saving();
  if (root) std::fputs(note.c_str(), stderr);
  bool interrupted = false;
  for (const RunPlan& plan : outcome.plans) {
    outcome.results.push_back(
        run_training(comm, mesh, options, plan, corpus, screen, place, log.get()));
    interrupted = outcome.results.back().interrupted;
    if (interrupted) break;
  }
  if (root) {
    if (log) log->finish();
    for (const RunFile& file : files) tool::write_text_file(file.path, file.text());
    const std::string text = options.json ? result_json(options, corpus.text(), outcome)
                                          : result_text(options, corpus.text(), outcome);
    std::fputs(text.c_str(), stdout);
    if (interrupted)
      std::fputs("Stopped by the user; the result is that of the steps done.\n", stderr);
    std::fflush(stdout);
  }
  // The signal may have reached only another rank.
  const int signal = stop_requested() ? stop_requested() : SIGINT;
  return interrupted ? 128 + signal : 0;
}

}  // namespace muonrt::train
