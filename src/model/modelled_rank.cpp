#include "model/modelled_rank.hpp"

#include <algorithm>
#include <map>
#include <numeric>

#include "base/error.hpp"
#include "optimizer/pipeline_config.hpp"

namespace muonrt {

ModelledRank::ModelledRank(const Planning& planning, const std::vector<NewtonSchulz>& methods,
                           const MachineProfile& profile, int32_t rank)
    : settings_(planning.settings()),
      device_(profile, matrix_rules(settings_), rank, planning.plan().problem().options.world),
      comm_(device_, planning.plan().problem().options.world) {
  const Plan& plan = planning.plan();
  std::vector<RankChunk> chunks = plan.rank_chunks(rank);
  state_ = State(device_, settings_, plan, chunks, rank);
  tables_ = ParamTables(device_, settings_, state_, chunks, rank);
  clipper_ = QkClipper(device_, settings_, tables_.params());
  auto views = std::ssize(settings_.params);
  for (const RankChunk& chunk : chunks) views += std::ssize(chunk.owner_state);
  for (int64_t i = 0; i < views; ++i) tables_.params()[i].active = 1;
  PipelineContext context;
  context.device = &device_;
  context.comm = &comm_;
  context.plan = &plan;
  context.tables = tables_.on_device();
  PipelineConfig config = make_pipeline_config(settings_, tables_, state_, clipper_, rank);
  config.chunks.newton_schulz = &methods;
  config.health = false;
  config.poison = false;
  pipeline_ = std::make_unique<Pipeline>(context, rank, std::move(chunks), std::move(config));
  set_footprint(planning, profile, rank);
  device_.begin_step();
  StepInputs inputs;
  inputs.committed = committed();
  pipeline_->enqueue(inputs);
  number_exchanges();
}

/// Sets the footprint for all ranks of the node together, because they share its caches.
void ModelledRank::set_footprint(const Planning& planning, const MachineProfile& profile,
                                 int32_t rank) {
  const PlanReport& report = planning.reports().full;
  const auto r = static_cast<size_t>(rank);
  const double ranks = std::min(profile.node_ranks, static_cast<double>(comm_.size()));
  device_.set_footprint(ranks * static_cast<double>(total_bytes(report, r)),
                        ranks * static_cast<double>(report.scratch[r] +
                                                    report.traffic.ranks[r].memory.message_bytes));
}

/// Returns a number of committed steps after which every chunk is active in the next step.
int64_t ModelledRank::committed() const {
  int64_t period = 1;
  for (const RankChunk& chunk : pipeline_->rank_chunks())
    period = std::lcm(period, int64_t{chunk.update_every});
  return period - 1;
}

/// Sets the keys of the exchanges. The driver has enqueued the exchanges in the order of its
/// actions.
void ModelledRank::number_exchanges() {
  std::map<int32_t, const RankChunk*> chunks;
  for (const RankChunk& chunk : pipeline_->rank_chunks()) chunks[chunk.index] = &chunk;
  std::vector<int64_t> keys;
  const auto add = [&](const auto& sends, const auto& receives, int64_t key) {
    if (!sends.empty() || !receives.empty()) keys.push_back(key);
  };
  for (const Action& action : pipeline_->order()) {
    const auto found = chunks.find(action.chunk);
    if (found == chunks.end()) continue;
    const RankChunk& c = *found->second;
    const int64_t first = 3 * int64_t{c.index};
    if (action.stage == Stage::kGather) add(c.gather_sends, c.gather_receives, first);
    if (action.stage != Stage::kOrthogonalize) continue;
    add(c.return_sends, c.return_receives, first + 1);
    add(c.relay_sends, c.relay_receives, first + 2);
  }
  std::vector<RecordedExchange>& exchanges = device_.recording().exchanges;
  MUONRT_CHECK_INTERNAL(keys.size() == exchanges.size(), exchanges.size(), " exchanges enqueued, ",
                        keys.size(), " planned");
  for (size_t i = 0; i < keys.size(); ++i) exchanges[i].key = keys[i];
}

}  // namespace muonrt
