#include "model/simulate.hpp"

#include <algorithm>
#include <map>
#include <memory>

#include "base/error.hpp"
#include "model/modelled_rank.hpp"
#include "model/resolve.hpp"
#include "optimizer/problem.hpp"
#include "pipeline/trace.hpp"

namespace muonrt {

namespace {

/// Returns the owner with the largest sum in a chunk.
/// @param of  Returns the term of a matrix.
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

std::string join_traces(const std::vector<std::unique_ptr<ModelledRank>>& ranks) {
  std::string out;
  for (const auto& rank : ranks) {
    const std::string trace = chrome_trace(rank->pipeline(), rank->recording().rank, 1, 0);
    const size_t begin = trace.find('[') + 1;
    out += (out.empty() ? "[" : ",\n") + trace.substr(begin, trace.rfind(']') - begin);
  }
  return out + "]\n";
}

}  // namespace

std::set<int32_t> simulated_ranks(const Planning& planning, int max_ranks) {
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
  // Some other ranks, which wait for the ranks above.
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
  for (const int32_t rank : simulated_ranks(planning, options.max_ranks)) {
    ranks.push_back(std::make_unique<ModelledRank>(planning, methods, profile, rank));
    recordings.push_back(&ranks.back()->recording());
  }
  Simulation out;
  out.ranks = resolve(recordings, profile, planning.plan().problem().options.world,
                      exchange_by_rank(profile));
  size_t critical = 0;
  const auto work = [&](size_t r) { return out.ranks[r].products + out.ranks[r].local; };
  for (size_t r = 0; r < out.ranks.size(); ++r) {
    out.seconds = std::max(out.seconds, out.ranks[r].seconds);
    if (work(r) > work(critical)) critical = r;
  }
  out.critical = out.ranks[critical];
  out.spans = ranks[critical]->pipeline().spans();
  if (options.trace) out.trace = join_traces(ranks);
  return out;
}

}  // namespace muonrt
