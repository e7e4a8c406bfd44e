#include "train/report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <nlohmann/json.hpp>

#include "show/fit.hpp"
#include "show/table.hpp"
#include "train/optimizer.hpp"

namespace muonrt::train {

namespace {

std::vector<tool::Cell> cells_of(const RunPlan& plan, const RunResult& result) {
  return {tool::cell::word(plan.optimizer),
          {fmt::format("{}", plan.lr), ""},
          tool::cell::count(result.steps),
          {fmt::format("{:.4f}", result.val_loss), ""},
          tool::cell::grouped(std::llround(result.tokens_per_second)),
          {fmt::format("{:.1f} ({:.1f})", result.optimizer_ms, result.exposed_ms), ""}};
}

std::string comparison(const Outcome& outcome) {
  const std::vector<RunResult>& results = outcome.results;
  if (results.size() != 2 || results[0].steps != results[1].steps) return "";
  std::string name = outcome.plans[0].optimizer;
  name[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(name[0])));
  const double difference = results[1].val_loss - results[0].val_loss;
  return fmt::format("{} {} {:.4f} nats per byte.\n", name,
                     difference > 0 ? "is lower by" : "is NOT lower: the difference is",
                     difference);
}

/// Returns one line for each run that has a QK-clip threshold.
std::string clipping(const Options& o, const Outcome& outcome) {
  std::string out;
  for (size_t i = 0; i < outcome.results.size(); ++i) {
    const RunResult& r = outcome.results[i];
    if (r.max_logits.empty() || (o.qk_clip == 0 && r.clipped_heads == 0)) continue;
    const float most = *std::max_element(r.max_logits.begin(), r.max_logits.end());
    const std::string& name = outcome.plans[i].optimizer;
    const bool clips =
        !TrainOptimizer(name, preset(o.preset), o.qk_clip, o.steps).clipped_layers().empty();
    out += fmt::format(
        "QK-clip ({}): {}{} heads clipped in {} steps; largest attention logit {:.3f}, at the end "
        "{:.3f}\n",
        name, clips ? "" : "Muon steps no query or key matrix, so nothing is clipped; ",
        r.clipped_heads, r.max_logits.size(), most, r.max_logits.back());
  }
  return out;
}

std::string checkpoints(const Options& o, const RunResult& r) {
  std::string out;
  if (!o.resume.empty()) {
    const std::string steps = std::to_string(r.first_step);
    out = r.first_step == r.steps ? "all " + steps + " steps were done: "
                                  : "resumed after step " + steps + ": ";
    out += o.resume + "\n";
  }
  if (!o.save.empty())
    out += "checkpoint after step " + std::to_string(r.steps) + ": " + o.save + " (" +
           tool::cell::grouped(r.saved_param_bytes).text + " bytes of weights)\n";
  return out;
}

}  // namespace

std::string result_text(const Options& o, const Text& text, const Outcome& outcome) {
  const Config config = preset(o.preset);
  const int64_t elements = total_elements(param_specs(config));
  std::string out =
      fmt::format("\n{}\n{} ranks ({}), preset {}: {} parameters; a step is {} x {} bytes\n\n",
                  describe(text), outcome.ranks, outcome.mesh, o.preset,
                  tool::cell::grouped(elements).text, o.batch, config.context);
  constexpr auto kLeft = tool::Table::Align::kLeft;
  tool::Table table({{"", "optimizer", kLeft},
                     {"", "lr", kLeft, 6},
                     {"", "steps", kLeft},
                     {"", "validation loss", kLeft, 26},
                     {"", "tokens/s", kLeft},
                     {"", "optimizer ms (exposed)", kLeft}});
  for (size_t i = 0; i < outcome.results.size(); ++i) {
    table.add(cells_of(outcome.plans[i], outcome.results[i]));
  }
  out += table.text() + comparison(outcome) + clipping(o, outcome);
  for (const RunResult& r : outcome.results) out += r.health + checkpoints(o, r);
  if (!o.out.empty()) {
    out += fmt::format("loss curve: {0}/loss.csv, {0}/loss.svg\nplan: {0}/plan.txt\n", o.out);
  }
  if (!o.trace.empty()) out += "trace: " + o.trace + " (open it in ui.perfetto.dev)\n";
  if (!o.timeline.empty()) out += "timeline: " + o.timeline + "\n";
  return tool::fitted(out, tool::output_width());
}

std::string result_json(const Options& o, const Text& text, const Outcome& outcome) {
  nlohmann::json runs = nlohmann::json::array();
  for (size_t i = 0; i < outcome.results.size(); ++i) {
    const RunPlan& plan = outcome.plans[i];
    const RunResult& r = outcome.results[i];
    nlohmann::json losses = nlohmann::json::array();
    for (const CurvePoint& p : r.curve.points) {
      if (!std::isnan(p.train_loss)) losses.push_back(p.train_loss);
    }
    runs.push_back({{"optimizer", plan.optimizer},
                    {"seed", plan.seed},
                    {"lr", plan.lr},
                    {"first_step", r.first_step},
                    {"steps", r.steps},
                    {"val_loss", r.val_loss},
                    {"train_loss", r.train_loss},
                    {"train_losses", losses},
                    {"tokens_per_second", r.tokens_per_second},
                    {"optimizer_ms", r.optimizer_ms},
                    {"exposed_ms", r.exposed_ms},
                    {"max_logits", r.max_logits},
                    {"clipped_heads", r.clipped_heads},
                    {"warning", r.warning.empty() ? nlohmann::json() : nlohmann::json(r.warning)},
                    {"health", nlohmann::json::parse(r.health_json.empty() ? "[]" : r.health_json)},
                    {"interrupted", r.interrupted}});
  }
  const nlohmann::json all = {{"text", text.name},      {"text_bytes", text.bytes.size()},
                              {"ranks", outcome.ranks}, {"mesh", outcome.mesh},
                              {"preset", o.preset},     {"batch", o.batch},
                              {"steps", o.steps},       {"runs", runs}};
  return all.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace muonrt::train
