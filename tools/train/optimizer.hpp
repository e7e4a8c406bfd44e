#pragma once

#include <string>
#include <vector>

#include "muonrt/muonrt.hpp"
#include "opt_json/bind.hpp"
#include "train/config.hpp"

namespace muonrt::train {

/// Returns the text of an opt.json. Throws std::runtime_error if there is no such file.
/// @param name  a name from tools/optimizers, or a path, which contains a '/' or ends with .json.
std::string optimizer_text(const std::string& name);

/// One of the optimizers of `--optimizer`, for one model. An opt.json defines it; its rules must
/// match the names of the model's parameters. The mesh of the run determines the layouts, so an
/// opt.json with layouts is rejected.
class TrainOptimizer {
 public:
  /// Throws std::runtime_error with a message that names the rule and the key.
  /// @param name     as for optimizer_text.
  /// @param qk_clip  threshold for the query and key matrices, which overrides the rules; 0 keeps
  ///     the thresholds of the rules.
  /// @param steps    number of steps of the run, which is also the default of total_steps.
  TrainOptimizer(const std::string& name, const Config& model, double qk_clip, int64_t steps);

  /// Returns the default peak learning rate of a run. This is the learning rate of the first Muon
  /// parameter or, if there is none, of the first parameter. If the rule of that parameter has a
  /// list of learning rates, returns the largest.
  double lr() const { return lr_; }
  /// Returns whether a rule has an lr_schedule. If so, --warmup and --final-lr do not apply.
  bool has_lr_schedule() const;
  /// Returns the layers with QK-clip in ascending order.
  const std::vector<int32_t>& clipped_layers() const { return clipped_layers_; }

  /// Returns the options of the whole optimizer. `config` shows which of them the file sets.
  tool::OptimizerOptions options() const;
  const tool::StepConfig& config() const { return config_; }
  /// Returns the groups at `step`, counted from 0.
  std::vector<muonrt_group_t> groups(int64_t step) const;
  /// Returns whether the groups are the same at every step.
  bool constant() const;
  /// Sets the group and the QK-clip of a parameter. The pointer to the QK-clip is valid while this
  /// object exists.
  void fill(muonrt_param_t& param, int64_t index) const;

  TrainOptimizer(const TrainOptimizer&) = delete;
  TrainOptimizer& operator=(const TrainOptimizer&) = delete;

 private:
  struct Param {
    int32_t group;
    bool clipped = false;
    muonrt_qk_clip_t clip;
  };
  void take_rules(const Config& model, int64_t steps);
  void clip(const Config& model, int64_t layer, bool keys, double threshold);

  tool::StepConfig config_;
  std::vector<size_t> used_;  // indices of the matching rules, ascending; one group each
  std::vector<tool::BoundRule> rules_;
  std::vector<Param> params_;
  std::vector<int32_t> clipped_layers_;
  double lr_ = 0.0;
};

}  // namespace muonrt::train
