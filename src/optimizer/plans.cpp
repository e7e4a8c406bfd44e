#include "optimizer/plans.hpp"

#include <algorithm>

#include "base/json.hpp"
#include "optimizer/problem.hpp"
#include "pipeline/batches.hpp"

namespace muonrt {

StepPlans::StepPlans(const OptimizerSettings& settings, std::vector<NewtonSchulz> methods,
                     int world)
    : methods_(std::move(methods)), period_(block_period(settings)) {
  const auto plan = [&](bool in_blocks) {
    return std::make_unique<Plan>(make_problem(settings, methods_, world, in_blocks));
  };
  whole_.plan = plan(false);
  if (period_ > 1) blocks_.plan = plan(true);
}

void StepPlans::take_pipelines(Context context, int rank, std::vector<SlotPlan> slots,
                               StepWork work) {
  work.chunks.newton_schulz = &methods_;
  context.plan = whole_.plan.get();
  whole_.pipeline = std::make_unique<Pipeline>(context, rank, std::move(slots), work);
  if (blocks_.plan) {
    // NorMuon and blocks exclude each other.
    work.chunks.normuon = nullptr;
    context.plan = blocks_.plan.get();
    blocks_.pipeline =
        std::make_unique<Pipeline>(context, rank, blocks_.plan->rank_slots(rank), std::move(work));
  }
  health_.matrices.reserve(most_measured());
}

// The agreement that ends the creation is what no rank's first exchange overtakes.
void StepPlans::rehearse(const Device& device) {
  if (!device.wants_rehearsal()) return;
  whole_.pipeline->rehearse();
  if (blocks_.pipeline) blocks_.pipeline->rehearse();
}

size_t StepPlans::most_measured() const {
  size_t most = 0;
  for (const Kind* kind : {&whole_, &blocks_})
    if (kind->pipeline && kind->pipeline->health())
      most = std::max(most, kind->pipeline->health()->matrices().size());
  return most;
}

void StepPlans::take_health(const ParamView* params, int64_t steps, bool skipped) {
  Health& health = *pipeline().health();
  health.finish(params, !skipped);
  health_.step = steps;
  health_.skipped = skipped;
  health_.matrices.assign(health.matrices().begin(), health.matrices().end());  // has its memory
  health_.difference = health.difference();
}

void StepPlans::choose(int64_t committed) {
  in_blocks_ = blocks_.pipeline && committed % period_ != 0;
}

std::string StepPlans::describe(const MatrixRules& rules, bool health,
                                std::span<const int64_t> checks, bool json) const {
  const auto scratch = [&](const Plan& plan) {
    return scratch_bytes(plan, methods_, rules, health);
  };
  if (!json) {
    const std::string out = whole().describe(0, scratch(whole()), checks);
    if (!blocks()) return out;
    return cat(out, "\nSteps 0, ", period_,
               ", ... take whole matrices, as above; those between take blocks:\n\n",
               blocks()->describe(0, scratch(*blocks())));
  }
  JsonWriter out;
  out.object([&] {
    whole().write(out, scratch(whole()), checks);
    if (!blocks()) return;
    out.field("block_period", period_);
    out.key("block_plan");
    out.object([&] { blocks()->write(out, scratch(*blocks())); });
  });
  return out.take();
}

}  // namespace muonrt
