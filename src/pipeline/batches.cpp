#include "pipeline/batches.hpp"

#include <algorithm>
#include <map>

#include "backend/health.hpp"
#include "base/checked.hpp"
#include "plan/batch.hpp"

namespace muonrt {

namespace {

bool can_share_batch(const BatchShape& a, const BatchShape& b) {
  return a.group == b.group && a.m == b.m && a.n == b.n && a.method.form == b.method.form;
}

}  // namespace

std::vector<BatchShape> batch_shapes(const Plan& plan, std::span<const int32_t> matrices,
                                     const MatrixRules& rules) {
  const DType transport = plan.problem().options.transport_dtype;
  const LaunchLimits limits = rules.launch_limits();
  std::vector<BatchShape> out;
  for (const int32_t id : matrices) {
    const Matrix& matrix = plan.matrices()[static_cast<size_t>(id)];
    BatchShape one;
    one.count = 1;
    one.group = plan.problem().params[static_cast<size_t>(matrix.param)].group;
    one.method = matrix.method;
    one.m = std::min(matrix.rows, matrix.cols);
    one.n = std::max(matrix.rows, matrix.cols);
    one.ld = rules.leading_dimension(one.n, transport);
    if (!out.empty() && can_share_batch(out.back(), one) &&
        (out.back().count + 1) * one.m * one.ld <= limits.max_elements) {
      ++out.back().count;
      continue;
    }
    one.first = out.empty() ? 0 : out.back().first + out.back().count;
    out.push_back(one);
  }
  int64_t elements = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t more = out[i].count * out[i].m * out[i].ld;
    const bool joins = i > 0 && limits.mixes_shapes && elements + more <= limits.max_elements;
    if (i > 0) out[i].batch_group = out[i - 1].batch_group + !joins;
    elements = joins ? elements + more : more;
  }
  return out;
}

BatchBytes batch_bytes(const BatchShape& batch, const NewtonSchulz& settings, DType transport,
                       const MatrixRules& rules, bool health) {
  BatchBytes out;
  out.raw = round_up(batch.count * batch.m * batch.ld * size_of(transport), kMemoryAlignment);
  out.workspace =
      newton_schulz_workspace(rules, settings, batch.method, batch.m, batch.n, batch.count);
  if (health)
    out.statistics =
        round_up(batch.count * lanczos_space(batch.m, batch.n).floats * 4, kMemoryAlignment);
  return out;
}

int64_t largest_batch_group_bytes(std::span<const BatchShape> batches,
                                  std::span<const NewtonSchulz> methods, DType transport,
                                  const MatrixRules& rules, bool health) {
  int64_t largest = 0, bytes = 0;
  int32_t batch_group = 0;
  for (const BatchShape& batch : batches) {
    if (batch.batch_group != batch_group) bytes = 0;
    batch_group = batch.batch_group;
    bytes += batch_bytes(batch, methods[static_cast<size_t>(batch.group)], transport, rules, health)
                 .total();
    largest = std::max(largest, bytes);
  }
  return largest;
}

std::vector<int64_t> scratch_bytes(const Plan& plan, std::span<const NewtonSchulz> methods,
                                   const MatrixRules& rules, bool health) {
  std::vector<int64_t> out(static_cast<size_t>(plan.problem().options.world), 0);
  for (const ChunkSpec& chunk : plan.chunks()) {
    if (chunk.kind == ChunkKind::kSlices) continue;
    std::map<int32_t, std::vector<int32_t>> owned;
    for (const int32_t id : chunk.matrices)
      owned[plan.matrices()[static_cast<size_t>(id)].owner].push_back(id);
    for (const auto& [owner, ids] : owned) {
      int64_t& bytes = out[static_cast<size_t>(owner)];
      bytes = std::max(bytes, largest_batch_group_bytes(
                                  batch_shapes(plan, in_batches(plan, ids), rules), methods,
                                  plan.problem().options.transport_dtype, rules, health));
    }
  }
  return out;
}

}  // namespace muonrt
