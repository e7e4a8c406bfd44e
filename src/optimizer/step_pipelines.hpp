#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "algo/newton_schulz.hpp"
#include "optimizer/settings/settings.hpp"
#include "optimizer/step_report.hpp"
#include "pipeline/pipeline.hpp"
#include "plan/plan.hpp"

namespace muonrt {

/// The plan and the pipeline of the steps that take whole matrices; where there is a block period,
/// also those of the steps between, which take blocks. One step is the current one.
class StepPipelines {
 public:
  StepPipelines() = default;
  /// @param methods  of each group.
  StepPipelines(const OptimizerSettings& settings, std::vector<NewtonSchulz> methods, int world);
  /// Takes the memory of both.
  /// @param context  device, communicator and tables.
  /// @param slots    what `rank` does in each, of the plan of whole matrices.
  /// @param work     without methods; `normuon` is of the matrices of that plan.
  void create_pipelines(PipelineContext context, int rank, std::vector<RankChunk> chunks,
                        PipelineConfig work);
  /// Where the device wants it. Nothing of the caller's is read. Every parameter sits out.
  void warm_up(const Device& device);

  const Plan& full_plan() const { return *whole_.plan; }
  const Pipeline& full_pipeline() const { return *whole_.pipeline; }
  /// Null where there are none.
  const Plan* block_plan() const { return blocks_.plan.get(); }
  /// Steps 0, period, 2 period, ... take whole matrices.
  int block_period() const { return period_; }

  /// The step behind so many committed ones becomes the current one.
  void select_step(int64_t committed);
  bool is_block_step() const { return is_block_step_; }
  const Plan& plan() const { return *current().plan; }
  Pipeline& pipeline() { return *current().pipeline; }
  const Pipeline& pipeline() const { return *current().pipeline; }

  /// The current step's work on this rank has ended.
  void count_orthogonalized() { orthogonalized_ += pipeline().owned_matrices(); }
  /// Matrices that this rank has orthogonalized, in all steps.
  int64_t orthogonalized() const { return orthogonalized_; }

  /// The current step has measured: keeps what it found. Throws what the device and the exchanges
  /// do. @param steps  committed by now.
  void collect_health(const ParamView* params, int64_t steps, bool skipped);
  const HealthReport& health() const { return health_; }

  /// Both plans, with the scratch that their products take; text or JSON.
  /// @param checks  bytes of each rank (first_check).
  std::string describe(const MatrixRules& rules, bool health, std::span<const int64_t> checks,
                       bool json) const;

 private:
  struct PlannedPipeline {
    std::unique_ptr<Plan> plan;
    std::unique_ptr<Pipeline> pipeline;
  };
  const PlannedPipeline& current() const { return is_block_step_ ? blocks_ : whole_; }
  size_t most_measured() const;  // matrices

  std::vector<NewtonSchulz> methods_;  // by group
  PlannedPipeline whole_, blocks_;
  int period_ = 1;
  bool is_block_step_ = false;
  int64_t orthogonalized_ = 0;
  HealthReport health_;
};

}  // namespace muonrt
