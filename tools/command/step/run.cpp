#include "command/step/run.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "command/step/commit.hpp"
#include "command/step/gather.hpp"
#include "command/step/logits.hpp"
#include "command/step/output.hpp"
#include "command/step/report.hpp"
#include "command/step/session.hpp"
#include "command/step/state.hpp"
#include "command/tensor_layout.hpp"
#include "opt_json/health.hpp"
#include "opt_json/output_file.hpp"
#include "opt_json/strict_json.hpp"
#include "state/element_hash.hpp"

namespace muonrt::tool {

namespace {

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

/// Collective: no rank reads before rank 0 has done what an earlier run left to do.
void recover(Comm& comm, const StepArguments& a) {
  if (comm.rank() == 0) {
    std::error_code none;
    for (const std::string& path : {a.out, a.params}) {
      if (path != a.out && !std::filesystem::exists(path, none)) continue;
      recover_commit(commit_path(path));
      recover_commit(commit_path_around(path));
    }
  }
  const char word = 0;
  std::vector<char> all(static_cast<size_t>(comm.size()));
  comm.allgather(&word, all.data(), sizeof word);
}

/// Every tensor of the input, in its order, those that step with new values.
/// @param out      receives them on rank 0; null elsewhere.
/// @param updates  receives the root mean square of what each tensor moved by.
/// @param hashes   receives, on rank 0, the hash of each tensor that steps, else 0.
void write_parameters(Comm& comm, StepSession& session, const TensorModel& params,
                      const std::vector<StepTensor>& tensors, ShardWriter* out,
                      std::vector<double>& updates, std::vector<uint64_t>& hashes) {
  for (const StepTensor& t : tensors) {
    const auto before = params.bytes(*t.entry);
    double moved = 0;
    uint64_t hash = 0;
    if (t.steps()) {
      const auto after = gather_elements(comm, t.entry->elements(), element_bytes(t.entry->dtype),
                                         t.layout->stretches(comm.rank()), session.data(t),
                                         "param " + shown(t.entry->name));
      if (out) {
        moved = root_mean_square_change(t.entry->dtype, before, after);
        hash = hash_elements(t.entry->name, 0, after, element_bytes(t.entry->dtype));
        out->add(after.data(), std::ssize(after));
      }
    } else if (out) {
      out->add(before.data(), std::ssize(before));
    }
    updates.push_back(moved);
    hashes.push_back(hash);
  }
}

}  // namespace

int run_step(Comm& comm, const StepArguments& a) {
  const bool root = comm.rank() == 0;
  check_mesh(a.mesh, comm.size());
  if (root) check_outputs(a);
  recover(comm, a);
  const StepConfig config = read_config(a.config);
  if (!a.health.empty() && config.health_every == 0) {
    throw std::runtime_error("--health: no step measures (health_every of " + config.file +
                             " is 0 or missing); set it");
  }
  const TensorModel params(a.params);
  std::vector<std::unique_ptr<TensorModel>> grads;
  for (const std::string& path : a.grads) grads.push_back(std::make_unique<TensorModel>(path));
  const std::unique_ptr<ShardWriter> out = root ? make_output(a, params, grads) : nullptr;
  std::vector<StepTensor> tensors = step_tensors(params, config, a.mesh, comm.size());
  StepSession session(comm, config, params, tensors, grads, a.where);
  const StepLogits logits(config, session.used(), a.logits, grads.size());
  if (!a.state_in.empty()) load_state(session, tensors, params, a.state_in, comm.rank());
  std::vector<std::string> names;
  for (const StepTensor& t : tensors) {
    if (t.steps()) names.push_back(t.entry->name);
  }
  HealthLog health(names);
  StepReporter report(tensors, config, a, comm.size());
  for (size_t i = 0; i < grads.size() && !session.empty(); ++i) {
    const std::vector<float> heads = logits.empty() ? std::vector<float>{} : logits.at(i);
    const muonrt_report_t done = session.step(*grads[i], heads);
    report.add_step(done, grads[i]->path());
    if (done.health) health.add(session.optimizer().health(), static_cast<int64_t>(i) + 1);
    if (!logits.empty()) report.add_clipped(session.optimizer());
  }
  std::vector<double> updates;
  std::vector<uint64_t> hashes;
  write_parameters(comm, session, params, tensors, out.get(), updates, hashes);
  std::unique_ptr<TensorWriter> state;
  if (!a.state_out.empty()) state = save_state(comm, session, tensors, hashes, a.state_out);
  if (root) {
    out->finish();
    std::vector<OutputFile*> files = out->files();
    if (state) files.push_back(&state->file());
    std::unique_ptr<OutputFile> lines;
    if (!a.health.empty()) {
      lines = std::make_unique<OutputFile>(a.health);
      const std::string text = health.json_lines();
      lines->write(text.data(), text.size());
      lines->finish();
      files.push_back(lines.get());
    }
    report.print(session.empty() ? "" : session.optimizer().describe(MUONRT_JSON), updates,
                 out->written(), health);
    if (!flush_output()) throw std::runtime_error("the output cannot be written");
    // All are whole, and what is printed is out, before the first takes its name.
    publish_together(files, commit_path(a.out));
  }
  return 0;
}

}  // namespace muonrt::tool
