#pragma once

#include <string>
#include <vector>

#include "command/shards.hpp"
#include "command/step/run.hpp"
#include "command/step/tensors.hpp"
#include "opt_json/health.hpp"

namespace muonrt::tool {

/// What `muonrt step` prints.
class StepReporter {
 public:
  StepReporter(const std::vector<StepTensor>& tensors, const StepConfig& config,
               const StepArguments& arguments, int world)
      : tensors_(tensors), config_(config), arguments_(arguments), world_(world) {}

  /// A step that this thread has just made: where it was skipped, muonrt_get_last_error says why.
  void add_step(const muonrt_step_report_t& report, const std::string& file);
  /// The heads that QK-clip acted on in the step that was added last.
  void add_clipped(const Optimizer& optimizer);
  /// @param plan   as muonrt_optimizer_describe_plan writes it, "" if nothing steps.
  /// @param files  that the parameters were written into.
  void print(const std::string& plan, const std::vector<ShardWriter::Written>& files,
             const HealthLog& health) const;

 private:
  struct Step {
    muonrt_step_report_t report;
    std::string file, reason;                          // why it was skipped
    std::vector<std::pair<int32_t, int32_t>> clipped;  // layer, head
  };
  void print_notes() const;

  const std::vector<StepTensor>& tensors_;
  const StepConfig& config_;
  const StepArguments& arguments_;
  int world_;
  std::vector<Step> steps_;
};

}  // namespace muonrt::tool
