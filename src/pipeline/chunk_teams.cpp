// Which matrices of a chunk are orthogonalized together, and the scratch that takes.

#include <algorithm>

#include "base/checked.hpp"
#include "pipeline/chunk.hpp"

namespace muonrt {

namespace {

bool same_work(const Matrix& a, const Matrix& b, int32_t group_a, int32_t group_b) {
  return group_a == group_b && std::min(a.rows, a.cols) == std::min(b.rows, b.cols) &&
         std::max(a.rows, a.cols) == std::max(b.rows, b.cols) && a.method.form == b.method.form;
}

}  // namespace

int64_t Chunk::raw_bytes(const MatrixBatch& raw) {
  return round_up(raw.count * raw.stride * size_of(raw.dtype), kMemoryAlignment);
}

int64_t Chunk::work_bytes(const Context& context, const Batch& batch) {
  const MatrixBatch& raw = batch.raw;
  return newton_schulz_workspace(context.ops(), *batch.settings, batch.method, raw.rows, raw.cols,
                                 raw.count);
}

std::vector<Chunk::Batch> Chunk::make_batches(const Context& context, const SlotPlan& plan) {
  const auto& matrices = context.plan->matrices();
  const auto& params = context.plan->problem().params;
  const DType dtype = context.transport();
  const int64_t most = context.ops().together().elements;
  std::vector<Batch> batches;
  std::vector<int32_t> batch_of(plan.owned.size()), index_in(plan.owned.size());
  for (size_t i = 0; i < plan.owned.size(); ++i) {
    const Owned& owned = plan.owned[i];
    const Matrix& matrix = matrices[owned.matrix];
    const int32_t group = params[matrix.param].group;
    const int64_t m = owned.short_side(), n = owned.long_side();
    const int64_t ld = context.ops().leading_dimension(n, dtype);
    bool joins = false;
    if (!batches.empty()) {
      const Matrix& first = matrices[batches.back().owned.front().matrix];
      joins = same_work(first, matrix, params[first.param].group, group) &&
              (batches.back().raw.count + 1) * m * ld <= most;
    }
    if (!joins) {
      Batch batch;
      batch.settings = &(*context.newton_schulz)[group];
      batch.method = matrix.method;
      batch.raw = MatrixBatch{nullptr, dtype, m, n, ld, 0, m * ld};
      batches.push_back(std::move(batch));
    }
    Batch& batch = batches.back();
    batch_of[i] = static_cast<int32_t>(batches.size()) - 1;
    index_in[i] = static_cast<int32_t>(batch.raw.count++);
    batch.owned.push_back(owned);
  }
  const auto deal = [&](const std::vector<Placed>& list, std::vector<Placed> Batch::*to) {
    for (Placed placed : list) {
      Batch& batch = batches[batch_of[placed.matrix]];
      placed.matrix = index_in[placed.matrix];
      (batch.*to).push_back(placed);
    }
  };
  deal(plan.gather_placed, &Batch::unpack);
  deal(plan.return_placed, &Batch::pack);
  return batches;
}

std::vector<Chunk::Team> Chunk::make_teams(const Context& context, const SlotPlan& plan) {
  const Together together = context.ops().together();
  std::vector<Team> teams;
  int64_t elements = 0;
  for (Batch& batch : make_batches(context, plan)) {
    const int64_t more = batch.raw.count * batch.raw.stride;
    if (teams.empty() || !together.shapes || elements + more > together.elements) {
      teams.emplace_back();
      elements = 0;
    }
    elements += more;
    teams.back().batches.push_back(std::move(batch));
  }
  return teams;
}

int64_t Chunk::batch_bytes(const Context& context, const Batch& batch) {
  const MatrixBatch& raw = batch.raw;
  const int64_t lanczos =
      context.health ? raw.count * lanczos_space(raw.rows, raw.cols).floats * 4 : 0;
  return raw_bytes(raw) + work_bytes(context, batch) + round_up(lanczos, kMemoryAlignment);
}

int64_t Chunk::scratch_bytes(const Context& context, const SlotPlan& plan) {
  int64_t most = 0;
  for (const Team& team : make_teams(context, plan)) {
    int64_t bytes = 0;
    for (const Batch& batch : team.batches) {
      reserve(context.ops(), *batch.settings, batch.method, batch.raw.rows, batch.raw.cols);
      bytes += batch_bytes(context, batch);
    }
    most = std::max(most, bytes);
  }
  return most;
}

}  // namespace muonrt
