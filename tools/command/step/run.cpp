#include "command/step/run.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <limits>
#include <memory>
#include <span>
#include <sstream>
#include <stdexcept>

#include "command/info/tensor_layout.hpp"
#include "command/output_folder.hpp"
#include "command/progress.hpp"
#include "command/shards.hpp"
#include "command/step/logits.hpp"
#include "command/step/report.hpp"
#include "command/step/session.hpp"
#include "opt_json/health.hpp"
#include "opt_json/output_file.hpp"
#include "opt_json/strict_json.hpp"

namespace muonrt::tool {

namespace {

constexpr const char* kStateFolder = "state";  // folder inside --out

void check_mesh(const std::string& mesh, int world) {
  if (mesh.empty()) return;
  int64_t ranks = 0;
  try {
    ranks = mesh_ranks(mesh);
  } catch (const std::exception& e) {
    throw std::runtime_error(std::string("--mesh: ") + e.what());
  }
  if (ranks != world) {
    throw std::runtime_error(fmt::format(
        "--mesh {} has {} ranks, but {} {}; start it under mpirun -n {}, or with --ranks {}", mesh,
        ranks, world, world == 1 ? "runs" : "run", ranks, ranks));
  }
}

/// Checks that the command can write the folder --out and the file --health, and that no other
/// option uses the file --health. Called before the work begins.
std::unique_ptr<OutputFolder> open_output(const StepArguments& a) {
  auto out = std::make_unique<OutputFolder>("--out", a.out, true);
  if (a.health.empty()) return out;
  if (out->contains(a.health))
    throw std::runtime_error("--health: " + a.health +
                             " is inside the folder of --out; use a file outside of it");
  std::vector<NamedFile> inputs = {{"--params", a.params}, {"--config", a.config}};
  for (const std::string& path : a.grads) inputs.push_back({"--grads", path});
  for (const std::string& path : a.logits) inputs.push_back({"--logits", path});
  require_writable({{"--health", a.health}}, inputs);
  return out;
}

/// Returns the writer of the parameters. --max-shard-bytes limits the size of the files. Without
/// this option, each file contains the same tensors as the corresponding file in --params.
std::unique_ptr<ShardWriter> make_writer(const StepArguments& a, const TensorModel& params) {
  constexpr const char* kModel = "model";
  const int64_t most = a.most > 0 ? a.most : std::numeric_limits<int64_t>::max();
  std::vector<Shard> shards;
  if (a.most > 0 || params.files().size() == 1)
    shards = cut_into_shards(kModel, params.table().entries, params.table().metadata, most);
  else
    for (const auto& file : params.files())
      shards.push_back({std::filesystem::path(file->path()).filename().string(),
                        file->table().entries, file->table().metadata});
  return std::make_unique<ShardWriter>(OutputFolder::work_path(a.out), kModel, std::move(shards),
                                       true);
}

/// Writes the parameters to files on rank 0. Collective.
/// @param out  null on other ranks.
void write_parameters(Comm& comm, StepSession& session, const TensorModel& params,
                      const std::vector<StepTensor>& tensors, ShardWriter* out) {
  for (const StepTensor& t : tensors) {
    std::vector<unsigned char> after;
    if (t.steps()) after = gather_tensor(comm, t, session.data(t));
    const auto data = t.steps() ? std::span<const unsigned char>(after) : params.bytes(*t.entry);
    if (out) out->add(data.data(), std::ssize(data));
  }
  if (out) out->finish();
}

/// Rejects options for the optimizer's state if all parameters are frozen.
void check_state(const StepArguments& a, const StepSession& session) {
  const std::string option = !a.state_in.empty() ? "--state-in" : a.state_out ? "--state-out" : "";
  if (session.empty() && !option.empty())
    throw std::runtime_error(option +
                             ": all parameters are frozen, so there is no state; omit the option");
}

/// Loads a checkpoint, which must contain the same parameters as the session. Collective.
/// @return  notes about differences and about state that was left out.
std::vector<std::string> load_state(StepSession& session, const StepArguments& a,
                                    const TensorModel& params, bool prints_notes) {
  session.load(a.state_in, params, a.partial_state);
  std::istringstream text(session.optimizer().load_notes());
  std::vector<std::string> notes;
  for (std::string line; std::getline(text, line);) notes.push_back(line);
  for (const std::string& note : notes)
    if (prints_notes) fmt::print(stderr, "muonrt: note: {}: {}\n", a.state_in, note);
  return notes;
}

/// Saves a checkpoint with the parameters. Collective.
void save_state(StepSession& session, const std::string& out) {
  session.optimizer().save(OutputFolder::work_path(out) + "/" + kStateFolder);
}

}  // namespace

int run_step(Comm& comm, const StepArguments& a) {
  const bool root = comm.rank() == 0;
  LongWork work(root);
  work.show("step: reading " + a.params);
  check_mesh(a.mesh, comm.size());
  const std::unique_ptr<OutputFolder> folder = root ? open_output(a) : nullptr;
  const StepConfig config = read_config(a.config);
  if (!a.health.empty() && config.health_every == 0) {
    throw std::runtime_error("--health: no step collects statistics, because health_every of " +
                             config.file + " is 0 or missing; set health_every");
  }
  const TensorModel params(a.params);
  std::vector<std::unique_ptr<TensorModel>> grads;
  for (const std::string& path : a.grads) grads.push_back(std::make_unique<TensorModel>(path));
  std::vector<StepTensor> tensors = step_tensors(params, config, a.mesh, comm.size());
  work.show(fmt::format("step: creating the optimizer on {} ranks", comm.size()));
  StepSession session(comm, config, params, tensors, grads, a.missing_grad == "sit-out", a.where);
  const auto layers = session.empty() ? std::vector<std::pair<int32_t, int32_t>>{}
                                      : session.optimizer().qk_layers();
  const std::vector<StepLogits> logits = read_logits(layers, a.logits, grads.size());
  check_state(a, session);
  std::vector<std::string> names;
  for (const StepTensor& t : tensors) {
    if (t.steps()) names.push_back(t.entry->name);
  }
  HealthLog health(names);
  StepReporter report(tensors, config, a, comm.size());
  work.clear();
  if (!a.state_in.empty()) report.set_state_notes(load_state(session, a, params, root));
  for (size_t i = 0; i < grads.size() && !session.empty(); ++i) {
    work.show(fmt::format("step: {} of {}", i + 1, grads.size()));
    const muonrt_step_report_t done = session.step(*grads[i], logits[i].values);
    report.add_step(done, grads[i]->path(), session.inactive());
    if (done.has_health) health.add(session.optimizer().health(), static_cast<int64_t>(i) + 1);
    if (!layers.empty()) report.add_clipped(session.optimizer(), logits[i].unused);
  }
  work.show("step: writing " + a.out);
  const std::unique_ptr<ShardWriter> out = root ? make_writer(a, params) : nullptr;
  write_parameters(comm, session, params, tensors, out.get());
  if (a.state_out) save_state(session, a.out);
  work.clear();
  if (root) {
    report.print(session.empty() ? "" : session.optimizer().describe_plan(MUONRT_FORMAT_JSON),
                 out->written(), health);
    if (!flush_output()) throw std::runtime_error("the output cannot be written");
    if (!a.health.empty()) write_text_file(a.health, health.json_lines());
    // Rename the folder last, after all files and the output are complete.
    folder->commit();
  }
  return 0;
}

}  // namespace muonrt::tool
