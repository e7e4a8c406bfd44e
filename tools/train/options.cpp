#include "train/options.hpp"

#include <cmath>
#include <stdexcept>

#include "train/format.hpp"

namespace muonrt::train {

namespace {

void require(bool ok, const std::string& option, const std::string& value, const char* allowed) {
  if (!ok) throw std::runtime_error(option + " is " + value + "; " + allowed);
}

void one_of(const std::string& option, const std::string& value,
            std::initializer_list<const char*> known) {
  std::string list;
  for (const char* name : known) {
    if (value == name) return;
    list += (list.empty() ? "use one of " : ", ") + std::string(name);
  }
  require(false, option, "'" + value + "'", list.c_str());
}

}  // namespace

void check_options(const Options& o) {
  one_of("--optimizer", o.optimizer, {"muon", "adamw", "both"});
  one_of("--commit", o.commit, {"atomic", "eager"});
  one_of("--transport", o.transport, {"bf16", "f32"});
  preset(o.preset);
  require(o.steps >= 1, "--steps", std::to_string(o.steps), "use 1 or more");
  require(o.batch >= 1, "--batch", std::to_string(o.batch), "use 1 or more sequences");
  require(o.runs >= 1 && o.runs <= 100, "--runs", std::to_string(o.runs), "use 1 to 100");
  require(o.eval_every >= 1, "--eval-every", std::to_string(o.eval_every), "use 1 or more steps");
  require(o.eval_windows >= 1, "--eval-windows", std::to_string(o.eval_windows), "use 1 or more");
  require(o.sample_bytes >= 0, "--sample", std::to_string(o.sample_bytes), "use 0 or more bytes");
  const auto rate = [](double v) { return std::isfinite(v) && v >= 0; };
  require(rate(o.muon_lr), "--muon-lr", shortest(o.muon_lr), "use a number >= 0");
  require(rate(o.adamw_lr), "--adamw-lr", shortest(o.adamw_lr), "use a number >= 0");
  require(o.warmup >= 0 && o.warmup <= 1, "--warmup", shortest(o.warmup),
          "use a share from 0 to 1");
  require(o.final_lr >= 0 && o.final_lr <= 1, "--final-lr", shortest(o.final_lr),
          "use a share from 0 to 1");
}

}  // namespace muonrt::train
