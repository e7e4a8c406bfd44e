#include "optimizer/step_pipelines.hpp"

#include <algorithm>

#include "base/json.hpp"
#include "optimizer/problem.hpp"
#include "pipeline/batches.hpp"

namespace muonrt {

StepPipelines::StepPipelines(const OptimizerSettings& settings, std::vector<NewtonSchulz> methods,
                             int world)
    : methods_(std::move(methods)), period_(muonrt::block_period(settings)) {
  const auto plan = [&](bool in_blocks) {
    return std::make_unique<Plan>(make_problem(settings, methods_, world, in_blocks));
  };
  whole_.plan = plan(false);
  if (period_ > 1) blocks_.plan = plan(true);
}

void StepPipelines::create_pipelines(PipelineContext context, int rank,
                                     std::vector<RankChunk> chunks, PipelineConfig work) {
  work.chunks.newton_schulz = &methods_;
  context.plan = whole_.plan.get();
  whole_.pipeline = std::make_unique<Pipeline>(context, rank, std::move(chunks), work);
  if (blocks_.plan) {
    // NorMuon and blocks exclude each other.
    work.chunks.normuon = nullptr;
    context.plan = blocks_.plan.get();
    blocks_.pipeline =
        std::make_unique<Pipeline>(context, rank, blocks_.plan->rank_chunks(rank), std::move(work));
  }
  health_.matrices.reserve(most_measured());
}

// The agreement that ends the creation is what no rank's first exchange overtakes.
void StepPipelines::warm_up(const Device& device) {
  if (!device.needs_warm_up()) return;
  whole_.pipeline->warm_up();
  if (blocks_.pipeline) blocks_.pipeline->warm_up();
}

size_t StepPipelines::most_measured() const {
  size_t most = 0;
  for (const PlannedPipeline* kind : {&whole_, &blocks_})
    if (kind->pipeline && kind->pipeline->health())
      most = std::max(most, kind->pipeline->health()->matrices().size());
  return most;
}

void StepPipelines::collect_health(const ParamView* params, int64_t steps, bool skipped) {
  Health& health = *pipeline().health();
  health.finish(params, !skipped);
  health_.step = steps;
  health_.skipped = skipped;
  health_.matrices.assign(health.matrices().begin(), health.matrices().end());  // has its memory
  health_.difference = health.difference();
}

void StepPipelines::select_step(int64_t committed) {
  is_block_step_ = blocks_.pipeline && committed % period_ != 0;
}

std::string StepPipelines::describe(const MatrixRules& rules, bool health,
                                    std::span<const int64_t> checks, bool json) const {
  const auto scratch = [&](const Plan& plan) {
    return scratch_bytes(plan, methods_, rules, health);
  };
  if (!json) {
    const std::string out = full_plan().describe(0, scratch(full_plan()), checks);
    if (!block_plan()) return out;
    return cat(out, "\nSteps 0, ", period_,
               ", ... take whole matrices, as above; those between take blocks:\n\n",
               block_plan()->describe(0, scratch(*block_plan())));
  }
  JsonWriter out;
  out.object([&] {
    full_plan().write(out, scratch(full_plan()), checks);
    if (!block_plan()) return;
    out.field("block_period", period_);
    out.key("block_plan");
    out.object([&] { block_plan()->write(out, scratch(*block_plan())); });
  });
  return out.take();
}

}  // namespace muonrt
