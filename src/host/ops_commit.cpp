#include <algorithm>

#include "host/host_ops.hpp"
#include "host/host_stream.hpp"
#include "host/row_split.hpp"
#include "host/weight_block.hpp"

namespace muonrt::host {

namespace {

/// Calls body(local offset, packed offset, index in the whole tensor, count) for parts of at most
/// kBlock consecutive elements in rows [first, end).
/// @param apart  If false, a part may span multiple rows that are contiguous in the local buffer.
template <class Body>
void for_blocks(const ShardBlock& block, int64_t first, int64_t end, bool apart, Body body) {
  const bool dense = block.cols == block.local_ld && !apart;
  const int64_t width = dense ? (end - first) * block.cols : block.cols;
  for (int64_t row = first; row < (dense ? first + 1 : end); ++row) {
    for (int64_t at = 0; at < width; at += kBlock) {
      body(block.local_offset + row * block.local_ld + at,
           block.packed_offset + row * block.cols + at,
           block.tensor_index + row * block.tensor_ld + at, std::min(kBlock, width - at));
    }
  }
}

/// Writes the momentum of rows [first, last), their weights, or both in one pass.
template <bool kMomentum, bool kWeights>
void commit_rows(Isa isa, const ShardBlock& block, int64_t first, int64_t last,
                 const ParamView& view, const MuonScalars& scalars, ConstTypedBuffer message,
                 Findings* findings) {
  const bool random_momentum = kMomentum && view.momentum_dtype != DType::kF32;
  const bool apart = random_momentum || view.form == WeightForm::kStochastic || view.row_factors;
  for_blocks(
      block, first, last, apart, [&](int64_t local, int64_t packed, int64_t element, int64_t n) {
        float grads[kBlock], updates[kBlock], momenta[kBlock];
        const float* grad = nullptr;
        float* momentum = nullptr;
        if constexpr (kMomentum) {
          grad = read_block(isa, view.grad, view.grad_dtype, local, n, grads);
          momentum = writable_block(isa, view.momentum, view.momentum_dtype, local, n, momenta);
        }
        if constexpr (kWeights) {
          WeightBlock weights(isa, view, local, n);
          const float* update = read_block(isa, message.data, message.dtype, packed, n, updates);
          const float factor =
              view.row_factors ? view.row_factors[element / block.tensor_ld] : 1.0f;
          if constexpr (kMomentum) {
            run_pass<MuonPass>(isa, weights.values(), momentum, grad, update, n, block.update_scale,
                               block.decay_scale, factor, &scalars);
          } else {
            run_pass<UpdatePass>(isa, weights.values(), update, n, block.update_scale,
                                 block.decay_scale, factor, &scalars);
          }
          weights.write(element, findings);
        } else {
          run_pass<MomentumPass>(isa, momentum, grad, n, &scalars);
        }
        if (random_momentum)
          run_pass<StochasticPass>(isa, static_cast<const float*>(momentum),
                                   static_cast<bf16*>(view.momentum) + local, n,
                                   view.seed ^ kMomentumSeed, view.step, view.key, element);
      });
}

/// @param element  the index of the first element in the whole tensor.
void adam_range(Isa isa, const ParamView& view, int64_t begin, int64_t count, int64_t element,
                const AdamScalars& scalars, Findings* findings) {
  for (int64_t done = 0; done < count; done += kBlock) {
    const int64_t at = begin + done, n = std::min(kBlock, count - done);
    float grads[kBlock];
    WeightBlock weights(isa, view, at, n);
    run_pass<AdamPass>(isa, weights.values(), static_cast<float*>(view.momentum) + at,
                       view.variance + at,
                       read_block(isa, view.grad, view.grad_dtype, at, n, grads), n, &scalars);
    weights.write(element + done, findings);
  }
}

}  // namespace

template <bool kMomentum, bool kWeights>
void HostOps::commit(Stream& stream, std::span<const ShardBlock> blocks, const StepTables& tables,
                     ConstTypedBuffer message, const CommitCondition& condition) {
  if (blocks.empty()) return;
  host_stream(stream).enqueue(Task([=, this] {
    if (!condition.passes()) return;
    const auto commit_block = [&](const ShardBlock& block, int64_t first, int64_t last) {
      const ParamView& view = tables.params[block.param];
      if (view.active)
        commit_rows<kMomentum, kWeights>(isa_, block, first, last, view, tables.groups[view.group],
                                         message, condition.findings);
    };
    spread_range(count_elements(blocks),
                 [&](int64_t begin, int64_t end) { for_rows(blocks, begin, end, commit_block); });
  }));
}

void HostOps::commit_muon(Stream& stream, std::span<const ShardBlock> blocks,
                          const StepTables& tables, ConstTypedBuffer message,
                          const CommitCondition& condition) {
  commit<true, true>(stream, blocks, tables, message, condition);
}

void HostOps::commit_update(Stream& stream, std::span<const ShardBlock> blocks,
                            const StepTables& tables, ConstTypedBuffer message,
                            const CommitCondition& condition) {
  commit<false, true>(stream, blocks, tables, message, condition);
}

void HostOps::commit_momentum(Stream& stream, std::span<const ShardBlock> blocks,
                              const StepTables& tables, const CommitCondition& condition) {
  commit<true, false>(stream, blocks, tables, {}, condition);
}

void HostOps::commit_adamw(Stream& stream, std::span<const int32_t> list,
                           std::span<const ShardBlock> blocks, const StepTables& tables,
                           const CommitCondition& condition) {
  if (list.empty() && blocks.empty()) return;
  host_stream(stream).enqueue(Task([=, this] {
    if (!condition.passes()) return;
    for (const int32_t index : list) {
      const ParamView& view = tables.params[index];
      if (!view.active) continue;
      spread_range(view.numel, [&](int64_t begin, int64_t end) {
        adam_range(isa_, view, begin, end - begin, begin, tables.adam[view.scalars],
                   condition.findings);
      });
    }
    const auto commit_block = [&](const ShardBlock& block, int64_t first, int64_t last) {
      const ParamView& view = tables.params[block.param];
      if (!view.active) return;
      for_blocks(block, first, last, true, [&](int64_t local, int64_t, int64_t element, int64_t n) {
        adam_range(isa_, view, local, n, element, tables.adam[view.scalars], condition.findings);
      });
    };
    spread_range(count_elements(blocks),
                 [&](int64_t begin, int64_t end) { for_rows(blocks, begin, end, commit_block); });
  }));
}

}  // namespace muonrt::host
