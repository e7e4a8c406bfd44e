#include "model/simulate.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <set>

#include "base/error.hpp"
#include "model/modelled_device.hpp"
#include "model/resolve.hpp"
#include "optimizer/pipeline_config.hpp"
#include "optimizer/problem.hpp"

namespace muonrt {

namespace {

/// One rank of an optimizer on the modelled backend, and what its driver enqueues in a full step in
/// which every parameter is active.
class ModelledRank {
 public:
  ModelledRank(const Planning& planning, const std::vector<NewtonSchulz>& methods,
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
    device_.begin_step();
    pipeline_->enqueue({.committed = committed()});
    number_exchanges();
  }

  const RankRecording& recording() { return device_.recording(); }
  const Pipeline& pipeline() const { return *pipeline_; }

 private:
  /// Returns the number of steps before one in which no chunk rests.
  int64_t committed() const {
    int64_t period = 1;
    for (const RankChunk& chunk : pipeline_->rank_chunks())
      period = std::lcm(period, int64_t{chunk.update_every});
    return period - 1;
  }

  /// Sets the keys of the exchanges, which the driver has enqueued in the order of its actions.
  void number_exchanges() {
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
    MUONRT_CHECK_INTERNAL(keys.size() == exchanges.size(), exchanges.size(),
                          " exchanges enqueued, ", keys.size(), " planned");
    for (size_t i = 0; i < keys.size(); ++i) exchanges[i].key = keys[i];
  }

  const OptimizerSettings& settings_;
  ModelledDevice device_;
  ModelledComm comm_;
  State state_;
  ParamTables tables_;
  QkClipper clipper_;
  std::unique_ptr<Pipeline> pipeline_;
};

/// Returns the owner with the most of something in a chunk. @param of  returns it for a matrix.
template <class Of>
int32_t largest_owner(const Plan& plan, const ChunkSpec& chunk, const Of& of) {
  std::map<int32_t, double> sums;
  for (const int32_t id : chunk.matrices) {
    const Matrix& m = plan.matrices()[static_cast<size_t>(id)];
    sums[m.owner] += of(m);
  }
  const auto most = std::max_element(
      sums.begin(), sums.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == sums.end() ? 0 : most->first;
}

std::set<int32_t> choose_ranks(const Planning& planning, int max_ranks) {
  const Plan& plan = planning.plan();
  const int world = plan.problem().options.world;
  std::set<int32_t> out;
  if (world <= max_ranks) {
    for (int32_t rank = 0; rank < world; ++rank) out.insert(rank);
    return out;
  }
  const PlanReport& report = planning.reports().full;
  const auto add_largest = [&](const auto& of) {
    int32_t most = 0;
    for (int32_t rank = 1; rank < world; ++rank)
      if (of(static_cast<size_t>(rank)) > of(static_cast<size_t>(most))) most = rank;
    out.insert(most);
  };
  const std::vector<RankTraffic>& traffic = report.traffic.ranks;
  add_largest([&](size_t r) { return plan.load()[r]; });
  add_largest([&](size_t r) { return traffic[r].sent; });
  add_largest([&](size_t r) { return traffic[r].received; });
  add_largest([&](size_t r) { return traffic[r].messages; });
  add_largest([&](size_t r) { return total_bytes(report, r); });
  for (const ChunkSpec& chunk : plan.chunks()) {
    const auto add = [&](const auto& of) {
      if (std::ssize(out) < max_ranks) out.insert(largest_owner(plan, chunk, of));
    };
    add([](const Matrix& m) { return m.cost; });
    add([](const Matrix& m) { return static_cast<double>(m.rows * m.cols); });
  }
  return out;
}

void add_timeline(Simulation& out, const std::vector<std::unique_ptr<ModelledRank>>& ranks,
                  const std::function<std::vector<RankTimes>(Clock)>& run) {
  for (const auto& rank : ranks)
    for (const Span& span : rank->pipeline().spans())
      out.timeline.push_back({rank->recording().rank, span});
  const auto read_again = [&](Clock clock, const auto& set) {
    run(clock);
    size_t at = 0;
    for (const auto& rank : ranks)
      for (const Span& span : rank->pipeline().spans())
        set(out.timeline[at++], span.end - span.begin);
  };
  read_again(Clock::kBytes, [](TimelineSpan& to, int64_t bytes) { to.bytes = bytes; });
  read_again(Clock::kFlops,
             [](TimelineSpan& to, int64_t flops) { to.flops = static_cast<double>(flops); });
  std::erase_if(out.timeline, [](const TimelineSpan& t) { return t.span.end == 0; });
  for (TimelineSpan& t : out.timeline) {
    --t.span.begin;  // Clock::kNanoseconds counts from 1
    --t.span.end;
  }
}

}  // namespace

Simulation simulate(const Planning& planning, const MachineProfile& profile,
                    const SimulationOptions& options) {
  MUONRT_REQUIRE(options.max_ranks >= 8, Status::kInvalidArgument, "simulation: max_ranks is ",
                 options.max_ranks, ", but must be at least 8");
  MUONRT_REQUIRE(!planning.settings().exchange_callbacks, Status::kNotSupported,
                 "simulation: the caller's functions exchange the messages, and their time is "
                 "unknown; leave out gather and redistribute");
  MUONRT_REQUIRE((planning.settings().device == DeviceKind::kCuda) == profile.gpu,
                 Status::kInvalidArgument, "simulation: ", profile.name,
                 profile.gpu ? " is a GPU, but the plan is that of the host"
                             : " has no GPU, but the plan is that of a GPU",
                 "; set the device of the options to that of the profile");
  const std::vector<NewtonSchulz> methods = make_newton_schulz(planning.settings());
  std::vector<std::unique_ptr<ModelledRank>> ranks;
  std::vector<const RankRecording*> recordings;
  for (const int32_t rank : choose_ranks(planning, options.max_ranks)) {
    ranks.push_back(std::make_unique<ModelledRank>(planning, methods, profile, rank));
    recordings.push_back(&ranks.back()->recording());
  }
  const auto run = [&](Clock clock) {
    return resolve(recordings, profile, planning.plan().problem().options.world, clock);
  };
  Simulation out;
  out.ranks = run(Clock::kNanoseconds);
  for (const RankTimes& r : out.ranks) {
    out.seconds = std::max(out.seconds, r.seconds);
    if (r.products + r.local > out.critical.products + out.critical.local || &r == &out.ranks[0])
      out.critical = r;
  }
  if (options.timeline) add_timeline(out, ranks, run);
  return out;
}

}  // namespace muonrt
