#pragma once

#include <string>
#include <vector>

#include "muonrt/muonrt.hpp"
#include "opt_json/bind.hpp"
#include "train/config.hpp"

namespace muonrt::train {

/// The opt.json of one. @param name  one of tools/optimizers, or a path (with '/' or .json).
/// Throws std::runtime_error.
std::string optimizer_text(const std::string& name);

/// One optimizer of `--optimizer` on one model: an opt.json, whose rules meet the names of the
/// model's parameters. Layouts come from the mesh, so a file that has some is refused.
class TrainOptimizer {
 public:
  /// @param name     as optimizer_text takes it.
  /// @param qk_clip  threshold for the query and key matrices, over what the rules say; 0: none.
  /// Throws std::runtime_error that names the rule and key.
  TrainOptimizer(const std::string& name, const Config& model, double qk_clip);

  /// Rate of the first matrix, or of the first parameter where there is none: the peak rate of a
  /// run that asks for no other.
  double lr() const { return lr_; }
  /// Layers with QK-clip, ascending.
  const std::vector<int32_t>& clipped_layers() const { return clipped_layers_; }

  /// What the file says for the whole optimizer; `config` tells which of it is a default.
  muonrt_optimizer_options_t options() const;
  const tool::StepConfig& config() const { return config_; }
  /// The groups at a step, counted from 0; whether they ever change.
  std::vector<muonrt_group_t> groups(int64_t step) const;
  bool constant() const;
  /// Sets group and QK-clip of a parameter; valid as long as this object.
  void fill(muonrt_param_t& param, int64_t index) const;

  TrainOptimizer(const TrainOptimizer&) = delete;
  TrainOptimizer& operator=(const TrainOptimizer&) = delete;

 private:
  struct Param {
    int32_t group;
    bool clipped = false;
    muonrt_qk_clip_t clip;
  };
  void take_rules(const Config& model);
  void clip(const Config& model, int64_t layer, bool keys, double threshold);

  tool::StepConfig config_;
  std::vector<size_t> used_;  // rules, ascending; a group each
  std::vector<tool::BoundRule> rules_;
  std::vector<Param> params_;
  std::vector<int32_t> clipped_layers_;
  double lr_ = 0.0;
};

}  // namespace muonrt::train
