#include "command/plan/split_by_depth.hpp"

#include <algorithm>
#include <numeric>

#include "model/direct_step.hpp"
#include "optimizer/problem.hpp"

namespace muonrt::tool {

namespace {

constexpr double kNotable = 1.02;
constexpr size_t kMaxKinds = 4;            // maximum number of kinds of divided matrices
constexpr int64_t kMaxPlacings = 1 << 24;  // maximum of matrices x ranks in a division

const ParamSpec& spec_of(const Planning& planning, const Matrix& m) {
  return planning.plan().problem().params[static_cast<size_t>(m.param)];
}

/// Matrices with the same cost.
struct Kind {
  std::vector<int32_t> ids;
  double seconds = 0;  // for each matrix
};

/// Returns the time of the busiest rank, in seconds, if each of these matrices were divided among
/// `ranks` ranks. The other matrices keep their owners. Each part is assigned to the least busy
/// rank that holds the matrix.
double divided_makespan(const Planning& planning, const std::vector<Kind>& kinds, size_t divided,
                        int64_t ranks, std::vector<double> load) {
  const Plan& plan = planning.plan();
  for (size_t k = 0; k < divided; ++k)
    for (const int32_t id : kinds[k].ids)
      load[static_cast<size_t>(plan.matrices()[static_cast<size_t>(id)].owner)] -= kinds[k].seconds;
  for (size_t k = 0; k < divided; ++k) {
    for (const int32_t id : kinds[k].ids) {
      const Matrix& m = plan.matrices()[static_cast<size_t>(id)];
      const double part = kinds[k].seconds * orthogonalize_cost(m.method, m.rows, m.cols, ranks) /
                          orthogonalize_cost(m.method, m.rows, m.cols);
      const HolderGroup& group = plan.holders().group(m.param, m.index);
      std::vector<int32_t> holders =
          plan.holders().candidates()[static_cast<size_t>(group.candidates)];
      const auto count = std::min<std::ptrdiff_t>(ranks, std::ssize(holders));
      std::partial_sort(holders.begin(), holders.begin() + count, holders.end(),
                        [&](int32_t a, int32_t b) {
                          return load[static_cast<size_t>(a)] < load[static_cast<size_t>(b)];
                        });
      for (std::ptrdiff_t i = 0; i < count; ++i)
        load[static_cast<size_t>(holders[static_cast<size_t>(i)])] += part;
    }
  }
  return *std::max_element(load.begin(), load.end());
}

}  // namespace

MatrixSeconds::MatrixSeconds(const Planning& planning, const MachineProfile& profile)
    : planning_(planning), profile_(profile), methods_(make_newton_schulz(planning.settings())) {}

double MatrixSeconds::of(int32_t id) {
  const Matrix& m = planning_.plan().matrices()[static_cast<size_t>(id)];
  const auto [at, is_new] = known_.try_emplace(batch_key(m, spec_of(planning_, m).group), 0.0);
  if (!is_new) return at->second;
  DirectChunk chunk;
  chunk.matrices = {id};
  const RankRecording recording =
      record_direct_step(planning_.plan(), methods_, matrix_rules(planning_.settings()), profile_,
                         m.owner, {std::move(chunk)}, 1, 0, nullptr);
  for (const RecordedOp& op : recording.compute)
    if (op.kind == OpKind::kProducts) at->second += op.seconds;
  return at->second;
}

DepthSplit split_by_depth(const Planning& planning, const MachineProfile& profile) {
  const Plan& plan = planning.plan();
  MatrixSeconds seconds(planning, profile);
  std::vector<double> load(plan.load().size(), 0);
  std::map<double, Kind, std::greater<>> by_seconds;
  for (size_t id = 0; id < plan.matrices().size(); ++id) {
    const double s = seconds.of(static_cast<int32_t>(id));
    load[static_cast<size_t>(plan.matrices()[id].owner)] += s;
    Kind& kind = by_seconds[s];
    kind.ids.push_back(static_cast<int32_t>(id));
    kind.seconds = s;
  }
  DepthSplit out;
  if (by_seconds.empty()) return out;
  out.before = out.after = *std::max_element(load.begin(), load.end());
  out.mean = std::accumulate(load.begin(), load.end(), 0.0) / static_cast<double>(load.size());
  std::vector<Kind> kinds;
  for (auto& [key, kind] : by_seconds) {
    if (kinds.size() == kMaxKinds) break;
    kinds.push_back(std::move(kind));
  }
  const Matrix& m = plan.matrices()[static_cast<size_t>(kinds[0].ids[0])];
  out.rows = m.rows;
  out.cols = m.cols;
  out.equally_large = std::ssize(kinds[0].ids);
  out.sums = m.method.form == Form::kGram ? 1 + std::ssize(m.method.restarts) : m.method.steps;
  int64_t matrices = 0;
  for (size_t divided = 1; divided <= kinds.size(); ++divided) {
    matrices += std::ssize(kinds[divided - 1].ids);
    if (matrices * std::ssize(load) > kMaxPlacings) break;
    for (int64_t ranks = 2; ranks <= std::min<int64_t>(64, std::ssize(load)); ranks *= 2) {
      const double after = divided_makespan(planning, kinds, divided, ranks, load);
      // Divide more matrices, or among more ranks, only if the gain is large enough.
      if (out.matrices > 0 && after * kNotable >= out.after) continue;
      out.after = after;
      out.matrices = matrices;
      out.ranks = ranks;
    }
  }
  const int64_t side = std::min(m.rows, m.cols);
  if (out.ranks > 0) out.extra_bytes = out.sums * side * side * 4 * 2 * (out.ranks - 1) / out.ranks;
  return out;
}

}  // namespace muonrt::tool
