#include "train/train.hpp"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
#include <memory>
#include <stdexcept>
#include <system_error>

#include "opt_json/output_file.hpp"
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

// Without this check, ranks with different files would train on different texts.
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

// Joins the JSON arrays of all ranks.
std::string merge_traces(Comm& comm, const std::string& mine) {
  const auto bytes = static_cast<int64_t>(mine.size());
  std::vector<int64_t> sizes(static_cast<size_t>(comm.size()));
  comm.allgather(sizes.data(), &bytes, sizeof bytes);
  const auto longest = static_cast<size_t>(*std::max_element(sizes.begin(), sizes.end()));
  std::string padded = mine;
  padded.resize(longest);
  std::string all(longest * sizes.size(), ' ');
  comm.allgather(all.data(), padded.data(), static_cast<int64_t>(longest));
  std::string out = "[";
  for (size_t r = 0; r < sizes.size(); ++r) {
    const std::string part = all.substr(r * longest, static_cast<size_t>(sizes[r]));
    const size_t open = part.find('['), close = part.rfind(']');
    if (open == std::string::npos || close == std::string::npos) continue;
    out += (r ? ",\n" : "") + part.substr(open + 1, close - open - 1);
  }
  return out + "]\n";
}

/// A file of --out; its text can be made only after the run.
struct RunFile {
  std::string path;
  std::function<std::string()> text;
};

std::vector<RunFile> run_files(const Options& o, const Text& text, const Outcome& outcome,
                               const std::string& trace) {
  std::vector<RunFile> files = {
      {o.out + "/plan.txt", [&] { return outcome.results.front().plan; }},
      {o.out + "/result.txt", [&] { return result_text(o, text, outcome); }},
      {o.out + "/result.json", [&] { return result_json(o, text, outcome); }}};
  if (o.trace) files.push_back({o.out + "/trace.json", [&] { return trace; }});
  return files;
}

void require_writable(const Options& o, const CurveLog& log, const std::vector<RunFile>& files) {
  std::vector<tool::NamedFile> outputs = {{"--out", log.csv_path()}, {"--out", log.svg_path()}},
                               inputs;
  for (const RunFile& file : files) outputs.push_back({"--out", file.path});
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
  std::string trace;
  std::vector<RunFile> files;
  std::unique_ptr<CurveLog> log;
  if (root && !options.out.empty()) {
    std::error_code failed;
    std::filesystem::create_directories(options.out, failed);
    if (failed)
      throw std::runtime_error("--out: " + options.out + " cannot be created: " + failed.message() +
                               "; use a folder that you may write to");
    files = run_files(options, corpus.text(), outcome, trace);
    log =
        std::make_unique<CurveLog>(options.out, "Loss in nats per byte",
                                   describe(corpus.text()) + ", " + std::to_string(outcome.ranks) +
                                       " ranks (" + outcome.mesh + "), preset " + options.preset);
    require_writable(options, *log, files);
  }
  FolderLock lock(nullptr, std::fclose);
  if (root && !options.save.empty()) lock = run.begin_saving();
  if (root) std::fputs(note.c_str(), stderr);
  bool interrupted = false;
  for (const RunPlan& plan : outcome.plans) {
    outcome.results.push_back(
        run_training(comm, mesh, options, plan, corpus, screen, place, log.get()));
    if (options.trace && trace.empty()) trace = merge_traces(comm, outcome.results.back().trace);
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
  // The signal may have been sent to other ranks only.
  const int signal = stop_requested() ? stop_requested() : SIGINT;
  return interrupted ? 128 + signal : 0;
}

}  // namespace muonrt::train
