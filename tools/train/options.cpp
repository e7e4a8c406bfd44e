#include "train/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>
#include <stdexcept>

#include "train/optimizer.hpp"

namespace muonrt::train {

namespace {

void require(bool ok, const std::string& option, const std::string& value, const char* allowed) {
  if (!ok) throw std::runtime_error(option + " is " + value + "; " + allowed);
}

void check_rates(const Options& o, size_t optimizers) {
  require(o.lr.size() <= 1 || o.lr.size() == optimizers, "--lr",
          "a list of " + std::to_string(o.lr.size()), "give one rate, or one for each optimizer");
  for (const double rate : o.lr) {
    require(std::isfinite(rate) && rate > 0, "--lr", fmt::format("{}", rate), "use a number > 0");
  }
}

void check_checkpoints(const Options& o, size_t optimizers) {
  require(o.save_every >= 1, "--save-every", std::to_string(o.save_every), "use 1 or more steps");
  if ((o.save.empty() && o.resume.empty()) || optimizers == 1) return;
  throw std::runtime_error((o.save.empty() ? "--resume" : "--save") +
                           std::string(": a checkpoint belongs to one run, but --optimizer ") +
                           o.optimizer + " starts " + std::to_string(optimizers) +
                           "; pass --optimizer with one name, such as muon");
}

void check_optimizers(const Options& o) {
  bool clips = false;
  for (const std::string& name : o.optimizers()) {
    const TrainOptimizer optimizer(name, preset(o.preset), o.qk_clip, o.steps);
    clips = clips || !optimizer.clipped_layers().empty();
  }
  if (o.qk_clip != 0 && !clips)
    throw std::runtime_error(fmt::format(
        "--qk-clip is {}, but no optimizer updates query or key matrices with Muon; add "
        "one that does",
        o.qk_clip));
}

}  // namespace

std::vector<std::string> Options::optimizers() const {
  std::vector<std::string> names;
  std::istringstream words(optimizer == "both" ? "muon,adamw" : optimizer);
  for (std::string word; std::getline(words, word, ',');) names.push_back(word);
  if (optimizer.ends_with(',')) names.emplace_back();
  return names;
}

void check_options(const Options& o) {
  preset(o.preset);
  require(o.steps >= 1, "--steps", std::to_string(o.steps), "use 1 or more");
  require(o.batch >= 1, "--batch", std::to_string(o.batch), "use 1 or more sequences");
  require(o.eval_every >= 1, "--eval-every", std::to_string(o.eval_every), "use 1 or more steps");
  require(o.eval_windows >= 1, "--eval-windows", std::to_string(o.eval_windows), "use 1 or more");
  require(std::isfinite(o.qk_clip) && o.qk_clip >= 0, "--qk-clip", fmt::format("{}", o.qk_clip),
          "use a number >= 0");
  require(!o.optimizers().empty(), "--optimizer", "empty",
          "use a name of `muonrt info optimizers`");
  const std::vector<std::string> names = o.optimizers();
  for (auto name = names.begin(); name != names.end(); ++name) {
    require(!name->empty(), "--optimizer", "'" + o.optimizer + "'", "remove the empty name");
    require(std::find(names.begin(), name, *name) == name, "--optimizer", "'" + o.optimizer + "'",
            "name each optimizer once");
  }
  check_rates(o, names.size());
  check_checkpoints(o, names.size());
  check_optimizers(o);
  require(o.warmup >= 0 && o.warmup <= 1, "--warmup", fmt::format("{}", o.warmup),
          "use a share from 0 to 1");
  require(o.final_lr >= 0 && o.final_lr <= 1, "--final-lr", fmt::format("{}", o.final_lr),
          "use a share from 0 to 1");
}

}  // namespace muonrt::train
