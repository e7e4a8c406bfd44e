#include "optimizer/step_pipelines.hpp"

#include <algorithm>

#include "base/json.hpp"
#include "optimizer/problem.hpp"
#include "pipeline/batches.hpp"
#include "plan/report/traffic.hpp"

namespace muonrt {

StepPipelines::StepPipelines(const OptimizerSettings& settings, std::vector<NewtonSchulz> methods,
                             int world)
    : methods_(std::move(methods)), period_(muonrt::block_period(settings)) {
  const auto plan = [&](bool in_blocks) {
    return std::make_unique<Plan>(make_problem(settings, methods_, world, in_blocks));
  };
  full_.plan = plan(false);
  if (period_ > 1) block_.plan = plan(true);
}

void StepPipelines::create_pipelines(PipelineContext context, int rank,
                                     std::vector<RankChunk> chunks, PipelineConfig config) {
  config.chunks.newton_schulz = &methods_;
  context.plan = full_.plan.get();
  full_.pipeline = std::make_unique<Pipeline>(context, rank, std::move(chunks), config);
  if (block_.plan) {
    // NorMuon cannot be combined with a block period; validate() rejects such settings.
    config.chunks.normuon = nullptr;
    context.plan = block_.plan.get();
    block_.pipeline = std::make_unique<Pipeline>(context, rank, block_.plan->rank_chunks(rank),
                                                 std::move(config));
  }
  health_.matrices.reserve(max_health_matrices());
}

// The creation of an optimizer ends with a collective, so no rank starts its first step while
// another rank is still warming up.
void StepPipelines::warm_up(const Device& device) {
  if (!device.needs_warm_up()) return;
  full_.pipeline->warm_up();
  if (block_.pipeline) block_.pipeline->warm_up();
}

// Connecting one pipeline is enough: both use the same communicator and have already passed their
// peers to it.
void StepPipelines::connect(const Device& device) {
  if (device.needs_warm_up()) full_.pipeline->connect();
}

size_t StepPipelines::max_health_matrices() const {
  size_t largest = 0;
  for (const PlannedPipeline* kind : {&full_, &block_})
    if (kind->pipeline && kind->pipeline->health())
      largest = std::max(largest, kind->pipeline->health()->matrices().size());
  return largest;
}

void StepPipelines::collect_health(const ParamView* params, int64_t steps, bool skipped) {
  Health& health = *pipeline().health();
  health.finish(params, !skipped);
  health_.step = steps;
  health_.skipped = skipped;
  // The memory of `matrices` is already reserved.
  health_.matrices.assign(health.matrices().begin(), health.matrices().end());
  health_.difference = health.difference();
}

int StepPipelines::update_every() const {
  int32_t out = 1;
  for (const ChunkSpec& chunk : plan().chunks()) out = std::max(out, chunk.update_every);
  return out;
}

void StepPipelines::select_step(int64_t committed) {
  is_block_step_ = block_.pipeline && committed % period_ != 0;
}

PlanReports StepPipelines::report(const MatrixRules& rules, bool health,
                                  std::span<const int64_t> checks) const {
  const auto scratch = [&](const Plan& plan) {
    return scratch_bytes(plan, methods_, rules, health);
  };
  PlanReports out{report_on(full_plan(), scratch(full_plan()), checks), {}};
  if (block_plan()) out.block = report_on(*block_plan(), scratch(*block_plan()));
  return out;
}

std::string StepPipelines::describe(const PlanReports& reports, bool json, int64_t max_rows) const {
  if (!json) {
    const std::string out = full_plan().describe(reports.full, max_rows);
    if (!block_plan()) return out;
    return cat(out, "\nSteps 0, ", period_,
               ", ... take whole matrices, as above; those between take blocks:\n\n",
               block_plan()->describe(*reports.block, max_rows));
  }
  JsonWriter out;
  out.object([&] {
    full_plan().write(out, reports.full);
    if (!block_plan()) return;
    out.field("block_period", period_);
    out.key("block_plan");
    out.object([&] { block_plan()->write(out, *reports.block); });
  });
  return out.take();
}

PlannedMemory StepPipelines::memory(const MatrixRules& rules, bool health, int rank) const {
  const auto number = static_cast<size_t>(rank);
  PlannedMemory out;
  out.full = measure_traffic(full_plan()).ranks[number].memory;
  out.scratch = scratch_bytes(full_plan(), methods_, rules, health)[number];
  if (!block_plan()) return out;
  out.block = measure_traffic(*block_plan()).ranks[number].memory;
  out.block.state_bytes = 0;
  out.block_scratch = scratch_bytes(*block_plan(), methods_, rules, health)[number];
  return out;
}

}  // namespace muonrt
