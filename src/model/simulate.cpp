#include "model/simulate.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>

#include "base/error.hpp"
#include "model/modelled_rank.hpp"
#include "model/resolve.hpp"
#include "optimizer/problem.hpp"

namespace muonrt {

namespace {

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
  // Others, which wait for those.
  for (int64_t k = 0; k < max_ranks / 4; ++k)
    out.insert(static_cast<int32_t>(k * world / (max_ranks / 4)));
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
    return resolve(recordings, profile, planning.plan().problem().options.world, clock,
                   exchange_by_rank(profile));
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
