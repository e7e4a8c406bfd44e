#include "command/step/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/sha256.hpp"
#include "command/table.hpp"
#include "opt_json/strict_json.hpp"

namespace muonrt::tool {

namespace {

using Json = nlohmann::json;

/// Which way each tensor went: standard, gram, adamw, frozen, empty.
struct Path {
  std::string name;
  std::vector<int64_t> owners;  // of its matrices
};

std::vector<Path> paths_of(const std::vector<StepTensor>& tensors, const std::string& plan) {
  const Json json = plan.empty() ? Json() : Json::parse(plan);
  std::vector<Path> out;
  for (const StepTensor& t : tensors) {
    Path& path = out.emplace_back();
    if (!t.steps()) {
      path.name = *t.config->role == "frozen" ? "frozen" : "empty";
      continue;
    }
    const Json& row = json.at("params").at(static_cast<size_t>(t.index));
    path.name = row.at("form").get<std::string>();
    path.owners = row.at("owners").get<std::vector<int64_t>>();
  }
  return out;
}

/// A list of owners, each once.
std::vector<int64_t> distinct(std::vector<int64_t> owners) {
  std::sort(owners.begin(), owners.end());
  owners.erase(std::unique(owners.begin(), owners.end()), owners.end());
  return owners;
}

Table params_table(const std::vector<StepTensor>& tensors, const std::vector<Path>& paths,
                   const std::vector<double>& updates) {
  constexpr auto kLeft = Table::Align::kLeft;
  Table table({{"name", "parameter", kLeft},
               {"rule", "rule", kLeft},
               {"path", "path", kLeft},
               {"owners", "owner", kLeft},
               {"update_rms", "update RMS"}});
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<int64_t> owners = distinct(paths[i].owners);
    const Cell update = tensors[i].steps() ? Cell{fmt::format("{:.6e}", updates[i]),
                                                  cell::scientific(updates[i]).json}
                                           : cell::nothing();
    const Cell none = {"-", "[]"};
    table.add({cell::word(tensors[i].entry->name), cell::word(tensors[i].config->rule),
               cell::word(paths[i].name), owners.empty() ? none : cell::list(owners), update});
  }
  return table;
}

std::string counts_text(const std::map<std::string, int64_t>& counts, bool json) {
  if (json) return Json(counts).dump();
  std::string out;
  for (const auto& [name, count] : counts) {
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name, count);
  }
  return out.empty() ? "none" : out;
}

}  // namespace

double root_mean_square_change(std::string_view dtype, std::span<const unsigned char> before,
                               const std::vector<unsigned char>& after) {
  const size_t bytes = dtype == "F32" ? 4 : 2, count = before.size() / bytes;
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    const double d = double{element_as_float(dtype, after.data() + i * bytes)} -
                     double{element_as_float(dtype, before.data() + i * bytes)};
    sum += d * d;
  }
  return count == 0 ? 0.0 : std::sqrt(sum / static_cast<double>(count));
}

void StepReporter::add_step(const muonrt_report_t& report, const std::string& file) {
  steps_.push_back({report, file, report.skipped ? muonrt_last_error() : "", {}});
}

void StepReporter::add_clipped(const Optimizer& optimizer) {
  Step& step = steps_.back();
  if (step.report.skipped) return;
  int64_t count = 0;
  check(muonrt_optimizer_clipped_heads(optimizer.get(), nullptr, nullptr, 0, &count));
  std::vector<int32_t> layers(static_cast<size_t>(count)), heads(layers.size());
  check(
      muonrt_optimizer_clipped_heads(optimizer.get(), layers.data(), heads.data(), count, &count));
  for (size_t i = 0; i < layers.size(); ++i) step.clipped.emplace_back(layers[i], heads[i]);
}

/// Whether a tensor of GPT-2's names has the shape that only Conv1D, which stores inputs x outputs,
/// gives it, and nothing says how it is stored.
bool looks_transposed(const StepTensor& t) {
  if (!t.steps() || t.adamw() || t.config->transposed) return false;
  const auto [rows, cols] = t.matrix_shape();
  const auto named = [&](const char* part) {
    return t.entry->name.find(part) != std::string::npos;
  };
  return ((named("c_attn") || named("c_fc")) && rows < cols) || (named("c_proj") && rows > cols);
}

namespace {

/// As sha256sum prints the files that have tensors.
std::string sums_text(const std::vector<ShardWriter::Written>& files) {
  std::string out;
  for (const auto& file : files)
    if (!file.sha256.empty()) out += fmt::format("{}  {}\n", file.sha256, file.name);
  return out;
}

std::string sums_json(const std::vector<ShardWriter::Written>& files) {
  std::vector<std::pair<std::string, std::string>> out;
  for (const auto& file : files)
    if (!file.sha256.empty()) out.emplace_back(file.name, json_text(file.sha256));
  return json_object(out);
}

/// Of what sha256sum prints.
std::string digest_of(const std::vector<ShardWriter::Written>& files) {
  const std::string text = sums_text(files);
  Sha256 sum;
  sum.update(text.data(), text.size());
  return hex(sum.digest());
}

}  // namespace

void StepReporter::print_notes() const {
  const auto looks = std::find_if(tensors_.begin(), tensors_.end(), looks_transposed);
  if (looks != tensors_.end()) {
    fmt::print(stderr,
               "muonrt: note: {}: shape {} is that of a weight stored inputs x outputs (GPT-2's "
               "Conv1D); say \"transposed\": true for all of these, or false\n",
               looks->where, shape_text(looks->entry->shape));
  }
  std::set<size_t> used;
  for (const StepTensor& t : tensors_) used.insert(t.rule);
  for (size_t i = 0; i < config_.rules.size(); ++i) {
    if (used.count(i)) continue;
    fmt::print(stderr, "muonrt: note: {}: rules[{}] ({}) applies to no parameter\n", config_.file,
               i, shown(config_.rules[i].pattern));
  }
}

void StepReporter::print(const std::string& plan, const std::vector<double>& updates,
                         const std::vector<ShardWriter::Written>& files,
                         const HealthLog& health) const {
  const std::vector<Path> paths = paths_of(tensors_, plan);
  std::map<std::string, int64_t> counts;
  for (const Path& path : paths) ++counts[path.name];
  const Table table = params_table(tensors_, paths, updates);
  int64_t skipped = 0, orthogonalized = 0, planned = 0;
  Json steps = Json::array();
  std::string lines;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const muonrt_report_t& r = steps_[i].report;
    skipped += r.skipped;
    orthogonalized += r.orthogonalized;
    planned += r.planned;
    Json& row = steps.emplace_back();
    row["file"] = steps_[i].file;
    row["skipped"] = r.skipped != 0;
    row["step"] = r.step;
    row["orthogonalized"] = r.orthogonalized;
    row["planned"] = r.planned;
    row["zero_matrices"] = r.zero_matrices;
    row["grad_norm"] = config_.clip_norm ? Json(r.grad_norm) : Json();
    row["clipped_heads"] = steps_[i].clipped;
    if (!steps_[i].clipped.empty()) {
      lines += fmt::format("step {} of {}: QK-clip acted on {} heads (layer.head):", i + 1,
                           steps_.size(), steps_[i].clipped.size());
      for (const auto& [layer, head] : steps_[i].clipped)
        lines += fmt::format(" {}.{}", layer, head);
      lines += "\n";
    }
    if (!r.skipped) continue;
    row["reason"] = steps_[i].reason;
    lines += fmt::format("step {} of {} skipped: {}: {}; nothing changed\n", i + 1, steps_.size(),
                         steps_[i].file, steps_[i].reason);
  }
  print_notes();
  if (arguments_.json) {
    fmt::print("{}\n", json_object({{"ranks", fmt::format("{}", world_)},
                                    {"mesh", json_text(arguments_.mesh)},
                                    {"steps", steps.dump(-1, ' ', false,
                                                         nlohmann::json::error_handler_t::replace)},
                                    {"skipped", fmt::format("{}", skipped)},
                                    {"paths", counts_text(counts, true)},
                                    {"sha256", json_text(digest_of(files))},
                                    {"files", sums_json(files)},
                                    {"params", table.json()},
                                    {"health", health.json_list()}}));
    return;
  }
  if (arguments_.verbose) fmt::print("{}\n", table.text());
  fmt::print("{}{}", lines, health.summary());
  fmt::print("steps: {} done, {} skipped; orthogonalized {} of {} planned\n",
             std::ssize(steps_) - skipped, skipped, orthogonalized, planned);
  fmt::print("paths: {}\n", counts_text(counts, false));
  fmt::print("{}", sums_text(files));
  fmt::print("sha256: {}\n", digest_of(files));
}

}  // namespace muonrt::tool
