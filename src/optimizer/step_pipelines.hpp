#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "algo/newton_schulz.hpp"
#include "optimizer/settings/settings.hpp"
#include "optimizer/step_report.hpp"
#include "pipeline/pipeline.hpp"
#include "plan/plan.hpp"
#include "plan/report/report.hpp"

namespace muonrt {

/// The bytes that a rank allocates according to its plans. Each of the two pipelines has its own
/// memory.
struct PlannedMemory {
  MemoryPlan full, block;  // block.state_bytes is 0, because the plans share the state
  int64_t scratch = 0, block_scratch = 0;
};

/// The report on the plan of full steps and the report on the plan of block steps.
struct PlanReports {
  PlanReport full;
  std::optional<PlanReport> block;
};

/// Holds the plan and the pipeline of full steps, which orthogonalize whole matrices. With a block
/// period, also holds the plan and the pipeline of block steps. Each step uses one of the two
/// pipelines.
class StepPipelines {
 public:
  StepPipelines() = default;
  /// @param methods  One entry for each group.
  StepPipelines(const OptimizerSettings& settings, std::vector<NewtonSchulz> methods, int world);
  /// Creates the pipelines and allocates their memory.
  /// @param context  Device, communicator and tables must be set.
  /// @param chunks   Chunks of `rank` in the plan of full steps.
  /// @param config   chunks.newton_schulz is not read; chunks.normuon must belong to the plan of
  ///     full steps.
  void create_pipelines(PipelineContext context, int rank, std::vector<RankChunk> chunks,
                        PipelineConfig config);
  /// Warms up the pipelines if the device needs it. All parameters must be inactive. Does not read
  /// the caller's memory.
  void warm_up(const Device& device);
  /// Connects the ranks after all of them have warmed up. Collective.
  void connect(const Device& device);

  const Plan& full_plan() const { return *full_.plan; }
  const Pipeline& full_pipeline() const { return *full_.pipeline; }
  /// Returns null if there are no block steps.
  const Plan* block_plan() const { return block_.plan.get(); }
  /// Returns the block period: steps 0, period, 2 period, ... are full steps.
  int block_period() const { return period_; }
  /// Returns the largest update_every of any chunk. A chunk with a value above 1 is inactive in
  /// some steps.
  int update_every() const;

  /// Selects the pipeline for the step that follows `committed` committed steps.
  void select_step(int64_t committed);
  bool is_block_step() const { return is_block_step_; }
  const Plan& plan() const { return *current().plan; }
  Pipeline& pipeline() { return *current().pipeline; }
  const Pipeline& pipeline() const { return *current().pipeline; }

  /// Counts the matrices of the current step. Call this function after the step is complete on this
  /// rank.
  void count_orthogonalized() { orthogonalized_ += pipeline().owned_matrices(); }
  /// Returns the number of matrices that this rank has orthogonalized in all steps together.
  int64_t orthogonalized() const { return orthogonalized_; }

  /// Finishes collecting the statistics of the current step and stores them. Collective.
  /// @param steps  Number of committed steps, including the current step if it was committed.
  /// Errors: any error of the device or of the communicator.
  void collect_health(const ParamView* params, int64_t steps, bool skipped);
  const HealthReport& health() const { return health_; }

  /// Returns reports on both plans, including the scratch memory for their products.
  /// @param checks  Result of consistency_check_bytes().
  PlanReports report(const MatrixRules& rules, bool health, std::span<const int64_t> checks) const;
  /// Describes both plans as text or JSON.
  /// @param max_rows  Maximum number of rows in each table of the text; 0 means all rows.
  std::string describe(const PlanReports& reports, bool json, int64_t max_rows = 0) const;
  /// Returns the memory sizes of `rank` that describe() prints.
  PlannedMemory memory(const MatrixRules& rules, bool health, int rank) const;

 private:
  struct PlannedPipeline {
    std::unique_ptr<Plan> plan;
    std::unique_ptr<Pipeline> pipeline;
  };
  const PlannedPipeline& current() const { return is_block_step_ ? block_ : full_; }
  /// Returns the maximum number of matrices for which a step collects statistics.
  size_t max_health_matrices() const;

  std::vector<NewtonSchulz> methods_;  // indexed by group
  PlannedPipeline full_, block_;
  int period_ = 1;
  bool is_block_step_ = false;
  int64_t orthogonalized_ = 0;
  HealthReport health_;
};

}  // namespace muonrt
