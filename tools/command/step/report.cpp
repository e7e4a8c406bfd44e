#include "command/step/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "opt_json/bind.hpp"
#include "opt_json/roles.hpp"
#include "opt_json/strict_json.hpp"
#include "show/fit.hpp"
#include "show/table.hpp"

namespace muonrt::tool {

namespace {

using Json = nlohmann::json;

/// Returns the table of tensors.
/// @param paths  receives the number of tensors for each kind of update: standard, gram, adamw,
///     frozen, empty.
Table params_table(const std::vector<StepTensor>& tensors, const std::string& plan,
                   std::map<std::string, int64_t>& paths) {
  constexpr auto kLeft = Table::Align::kLeft;
  Table table({{"name", "parameter", kLeft},
               {"rule", "rule", kLeft},
               {"role", "role", kLeft},
               {"why", "why", kLeft},
               {"path", "path", kLeft},
               {"owners", "owner", kLeft}});
  const Json params = plan.empty() ? Json() : Json::parse(plan).at("params");
  for (const StepTensor& t : tensors) {
    std::string path = *t.config->role == "frozen" ? "frozen" : "empty";
    Cell owners = {"-", "[]"};
    if (t.steps()) {
      const Json& row = params.at(static_cast<size_t>(t.index));
      path = row.at("form").get<std::string>();
      const auto of_matrices = row.at("owners").get<std::set<int64_t>>();
      if (!of_matrices.empty()) owners = cell::list({of_matrices.begin(), of_matrices.end()});
    }
    ++paths[path];
    const ParamConfig& c = *t.config;
    const std::string why =
        c.by_name ? role_by_name(c, t.entry->name, t.entry->shape, "").why : "set by the rule";
    table.add({cell::word(t.entry->name), cell::word(c.rule), cell::word(*c.role), cell::word(why),
               cell::word(path), owners});
  }
  return table;
}

std::string text_of(const std::map<std::string, int64_t>& counts) {
  std::string out;
  for (const auto& [name, count] : counts)
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", name, count);
  return out.empty() ? "none" : out;
}

/// Returns whether a tensor has the name and the shape of a weight of GPT-2's Conv1D, although its
/// rule does not set `transposed`. Conv1D stores weights as inputs x outputs.
bool looks_transposed(const StepTensor& t) {
  if (!t.steps() || t.adamw() || t.config->transposed) return false;
  const auto [rows, cols] = t.matrix_shape();
  const auto named = [&](const char* part) {
    return t.entry->name.find(part) != std::string::npos;
  };
  return ((named("c_attn") || named("c_fc")) && rows < cols) || (named("c_proj") && rows > cols);
}

}  // namespace

void StepReporter::add_step(const muonrt_step_report_t& report, const std::string& file,
                            std::vector<std::string> inactive) {
  Step& step = steps_.emplace_back();
  step.report = report;
  step.file = file;
  if (report.skipped) step.reason = muonrt_get_last_error();
  step.inactive = std::move(inactive);
  for (const StepTensor& t : tensors_)
    if (t.steps() && t.index == report.large_update_param)
      step.warning = large_update_text(
          report, t.entry->name, "lr",
          t.config->has_rates() ? t.config->lr_schedule->rates.front() : t.config->lr.value());
}

void StepReporter::add_clipped(const Optimizer& optimizer, std::vector<std::string> unused) {
  Step& step = steps_.back();
  step.unused_logits = std::move(unused);
  if (step.report.skipped) return;
  step.clipped = optimizer.clipped_heads();
}

void StepReporter::print_notes() const {
  const auto looks = std::find_if(tensors_.begin(), tensors_.end(), looks_transposed);
  if (looks != tensors_.end()) {
    fmt::print(stderr,
               "muonrt: note: {}: shape {} looks like a weight stored as inputs x outputs (GPT-2's "
               "Conv1D); set \"transposed\" to true or false\n",
               looks->where, shape_text(looks->entry->shape));
  }
  std::set<std::string> used;
  for (const StepTensor& t : tensors_) used.insert(t.config->rule);
  for (const Rule& rule : config_.rules) {
    if (!used.insert(rule.config.rule).second) continue;
    fmt::print(stderr, "muonrt: note: {}: {} ({}) applies to no parameter\n", config_.file,
               rule.config.rule, shown(rule.pattern));
  }
}

void StepReporter::print(const std::string& plan, const std::vector<ShardWriter::Written>& files,
                         const HealthLog& health) const {
  std::map<std::string, int64_t> paths;
  const Table table = params_table(tensors_, plan, paths);
  int64_t skipped = 0, orthogonalized = 0, planned = 0;
  Json steps = Json::array();
  std::string lines;
  for (size_t i = 0; i < steps_.size(); ++i) {
    const muonrt_step_report_t& r = steps_[i].report;
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
    row["unused_logits"] = steps_[i].unused_logits;
    if (!steps_[i].unused_logits.empty()) {
      lines += fmt::format(
          "step {} of {}: {} logits have no effect, because no parameter of their "
          "layer has qk_clip:",
          i + 1, steps_.size(), steps_[i].unused_logits.size());
      for (const std::string& name : steps_[i].unused_logits) lines += " " + shown(name);
      lines += "\n";
    }
    row["inactive"] = steps_[i].inactive;
    if (!steps_[i].inactive.empty()) {
      lines += fmt::format(
          "step {} of {}: {} has no gradient of {} parameters, which did not change:", i + 1,
          steps_.size(), steps_[i].file, steps_[i].inactive.size());
      for (const std::string& name : steps_[i].inactive) lines += " " + shown(name);
      lines += "\n";
    }
    row["warning"] = steps_[i].warning.empty() ? Json() : Json(steps_[i].warning);
    if (!steps_[i].warning.empty()) fmt::print(stderr, "muonrt: warning: {}\n", steps_[i].warning);
    if (!r.skipped) continue;
    row["reason"] = steps_[i].reason;
    lines += fmt::format("step {} of {} skipped: {}: {}; nothing changed\n", i + 1, steps_.size(),
                         steps_[i].file, steps_[i].reason);
  }
  print_notes();
  std::string sums;  // in the format of sha256sum
  for (const auto& file : files)
    if (!file.sha256.empty()) sums += fmt::format("{}  {}\n", file.sha256, file.name);
  const std::string digest = sha256_of(sums);
  if (arguments_.json) {
    Json sum_of = Json::object();
    for (const auto& file : files)
      if (!file.sha256.empty()) sum_of[file.name] = file.sha256;
    const auto text = [](const Json& json) {
      return json.dump(-1, ' ', false, Json::error_handler_t::replace);
    };
    fmt::print("{}\n", json_object({{"ranks", std::to_string(world_)},
                                    {"mesh", json_text(arguments_.mesh)},
                                    {"steps", text(steps)},
                                    {"skipped", std::to_string(skipped)},
                                    {"paths", text(paths)},
                                    {"sha256", json_text(digest)},
                                    {"files", text(sum_of)},
                                    {"params", table.json()},
                                    {"state_notes", text(state_notes_)},
                                    {"health", health.json_list()}}));
    return;
  }
  if (arguments_.verbose) fmt::print("{}\n", table.text());
  print_fitted(lines + health.summary());
  print_fitted(fmt::format("steps: {} done, {} skipped; orthogonalized {} of {} planned\n",
                           std::ssize(steps_) - skipped, skipped, orthogonalized, planned));
  print_fitted(fmt::format("paths: {}\n", text_of(paths)));
  fmt::print("{}sha256: {}\n", sums, digest);
}

}  // namespace muonrt::tool
