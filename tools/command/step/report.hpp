#pragma once

#include <string>
#include <vector>

#include "command/shards.hpp"
#include "command/step/run.hpp"
#include "command/step/tensors.hpp"
#include "opt_json/health.hpp"

namespace muonrt::tool {

/// Collects and prints the output of `muonrt step`.
class StepReporter {
 public:
  StepReporter(const std::vector<StepTensor>& tensors, const StepConfig& config,
               const StepArguments& arguments, int world)
      : tensors_(tensors), config_(config), arguments_(arguments), world_(world) {}

  /// Adds the last step that this thread has run. If the step was skipped, reads the reason from
  /// muonrt_get_last_error().
  /// @param inactive  names of the parameters that had no gradient.
  void add_step(const muonrt_step_report_t& report, const std::string& file,
                std::vector<std::string> inactive);
  void set_state_notes(std::vector<std::string> notes) { state_notes_ = std::move(notes); }
  /// For the step that was added last, adds the heads that QK-clip has scaled.
  /// @param unused  the names of logits for layers without qk_clip.
  void add_clipped(const Optimizer& optimizer, std::vector<std::string> unused);
  /// @param plan   the JSON text from muonrt_optimizer_describe_plan(), or "" if all parameters are
  ///     frozen.
  /// @param files  the files with the parameters.
  void print(const std::string& plan, const std::vector<ShardWriter::Written>& files,
             const HealthLog& health) const;

 private:
  struct Step {
    muonrt_step_report_t report;
    std::string file, reason;                          // `reason`: why the step was skipped
    std::vector<std::pair<int32_t, int32_t>> clipped;  // layer, head
    std::vector<std::string> inactive, unused_logits;
    std::string warning;  // a warning about a large first step
  };
  void print_notes() const;

  const std::vector<StepTensor>& tensors_;
  const StepConfig& config_;
  const StepArguments& arguments_;
  int world_;
  std::vector<Step> steps_;
  std::vector<std::string> state_notes_;  // notes about --state-in
};

}  // namespace muonrt::tool
