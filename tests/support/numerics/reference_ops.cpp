#include "support/numerics/reference_ops.hpp"

#include <cmath>

#include "backend/update_rules.hpp"
#include "backend/weight_bits.hpp"
#include "reference/reference.hpp"

namespace reference_ops {

using namespace muonrt;

float load(const void* data, DType dtype, int64_t i) {
  if (dtype == DType::kF32) return static_cast<const float*>(data)[i];
  if (dtype == DType::kF16)
    return static_cast<float>(reference::half_value(static_cast<const uint16_t*>(data)[i]));
  return to_f32(static_cast<const bf16*>(data)[i]);
}

void store(void* data, DType dtype, int64_t i, float x) {
  if (dtype == DType::kF32)
    static_cast<float*>(data)[i] = x;
  else if (dtype == DType::kF16)
    static_cast<uint16_t*>(data)[i] = reference::half_bits(static_cast<double>(x));
  else
    static_cast<bf16*>(data)[i] = to_bf16(x);
}

namespace {

/// Records a non-finite value. `param` is -1 if the value belongs to no parameter.
/// @param in_f32  Whether the value was non-finite before its conversion to a smaller type.
void note(Findings* findings, int32_t param, bool in_f32 = true) {
  findings->nonfinite = 1;
  if (param < 0) return;
  const auto lower = [&](int64_t& first) { first = first < 0 || param < first ? param : first; };
  lower(findings->first_param);
  if (in_f32) lower(findings->first_in_f32);
}

float gradient(const ParamView& p, int64_t i, float factor) {
  return load(p.grad, p.grad_dtype, i) * factor;
}

float weight(const ParamView& p, int64_t i) {
  if (p.form == WeightForm::kMaster) return p.master[i];
  if (p.form == WeightForm::kRemainder)
    return join_weight(static_cast<const bf16*>(p.param)[i].bits, p.remainder[i]);
  return load(p.param, p.param_dtype, i);
}

void note_written(const void* data, DType dtype, int64_t i, const CommitCondition& vote_sum) {
  if (vote_sum.findings && !std::isfinite(load(data, dtype, i)))
    vote_sum.findings->wrote_nonfinite = 1;
}

/// @param element  The index in the whole tensor.
void set_weight(const ParamView& p, int64_t i, int64_t element, float w,
                const CommitCondition& vote_sum) {
  if (p.form == WeightForm::kMaster) p.master[i] = w;
  if (p.form == WeightForm::kParamOnly || p.form == WeightForm::kMaster) {
    store(p.param, p.param_dtype, i, w);
  } else if (p.form == WeightForm::kRemainder) {
    const SplitWeight split = split_weight(w);
    static_cast<bf16*>(p.param)[i].bits = split.high;
    p.remainder[i] = split.low;
  } else {
    static_cast<bf16*>(p.param)[i].bits =
        round_stochastic(w, random_bits(p.seed, p.step, p.key, static_cast<uint64_t>(element)));
  }
  note_written(p.param, p.param_dtype, i, vote_sum);
}

/// Enqueues body(block, i, at, element) for every element. `block` is the element's block. i, at
/// and element are its indices in the parameter's arrays, in the message and in the whole tensor.
template <class Body>
void for_elements(Stream& stream, std::span<const ShardBlock> blocks, Body body) {
  host::host_stream(stream).enqueue(host::Task([=] {
    for (const ShardBlock& p : blocks)
      for (int64_t r = 0; r < p.rows; ++r)
        for (int64_t c = 0; c < p.cols; ++c)
          body(p, p.local_offset + r * p.local_ld + c, p.packed_offset + r * p.cols + c,
               p.tensor_index + r * p.tensor_ld + c);
  }));
}

float momentum(const ParamView& p, int64_t i) { return load(p.momentum, p.momentum_dtype, i); }

/// Returns the index in batch b of entry (row, col) of a matrix. If `transposed` is true, b stores
/// the matrix transposed.
int64_t place(const MatrixBatch& b, bool transposed, int64_t row, int64_t col) {
  return transposed ? col * b.ld + row : row * b.ld + col;
}

}  // namespace

void ReferenceOps::pack_direction(Stream& s, std::span<const ShardBlock> blocks,
                                  const StepTables& tables, TypedBuffer message,
                                  Findings* findings) {
  for_elements(s, blocks, [=](const ShardBlock& block, int64_t i, int64_t at, int64_t) {
    const ParamView& p = tables.params[block.param];
    const MuonScalars& scalars = tables.groups[p.group];
    if (!p.active) return store(message.data, message.dtype, at, 0.0f);
    const float g = gradient(p, i, scalars.grad_scale);
    const float sent = direction(next_momentum(momentum(p, i), g, scalars), g, scalars);
    store(message.data, message.dtype, at, sent);
    const bool in_f32 = !std::isfinite(g) || !std::isfinite(sent);
    if (in_f32 || !std::isfinite(load(message.data, message.dtype, at)))
      note(findings, block.param, in_f32);
  });
}

void ReferenceOps::pack_partial_grad(Stream& s, std::span<const ShardBlock> blocks,
                                     const ParamView* params, TypedBuffer message,
                                     Findings* findings) {
  for_elements(s, blocks, [=](const ShardBlock& block, int64_t i, int64_t at, int64_t) {
    const ParamView& p = params[block.param];
    store(message.data, message.dtype, at, p.active ? load(p.grad, p.grad_dtype, i) : 0.0f);
    if (!std::isfinite(load(message.data, message.dtype, at))) note(findings, block.param);
  });
}

void ReferenceOps::accumulate(Stream& s, std::span<const ShardBlock> blocks, float* sums,
                              ConstTypedBuffer message, bool first) {
  for_elements(s, blocks, [=](const ShardBlock&, int64_t i, int64_t at, int64_t) {
    const float x = load(message.data, message.dtype, at);
    sums[i] = first ? x : sums[i] + x;
  });
}

void ReferenceOps::pack_adamw(Stream& s, std::span<const ShardBlock> blocks,
                              const StepTables& tables, TypedBuffer message, Findings* findings) {
  for_elements(s, blocks, [=](const ShardBlock& block, int64_t i, int64_t at, int64_t) {
    const ParamView& p = tables.params[block.param];
    const AdamScalars& scalars = tables.adam[p.scalars];
    if (!p.active) return store(message.data, message.dtype, at, 0.0f);
    const float g = gradient(p, i, scalars.grad_scale);
    if (!std::isfinite(g * g)) note(findings, block.param);
    float m = momentum(p, i), v = p.variance[i];
    store(message.data, message.dtype, at, adamw_update(weight(p, i), g, m, v, scalars));
  });
}

void ReferenceOps::commit_values(Stream& s, std::span<const ShardBlock> blocks,
                                 const ParamView* params, ConstTypedBuffer message,
                                 const CommitCondition& vote_sum) {
  for_elements(s, blocks, [=](const ShardBlock& block, int64_t i, int64_t at, int64_t) {
    const ParamView& p = params[block.param];
    if (p.active && vote_sum.passes())
      set_weight(p, i, 0, load(message.data, message.dtype, at), vote_sum);
  });
}

void ReferenceOps::unpack(Stream& s, std::span<const MatrixBlock> blocks,
                          std::span<const OwnedMatrix> owned, const MatrixBatch* matrices,
                          ConstTypedBuffer message) {
  host::host_stream(s).enqueue(host::Task([=] {
    for (const MatrixBlock& p : blocks) {
      const MatrixBatch& to = matrices[p.matrix];
      const bool transposed = owned[static_cast<size_t>(p.matrix)].transposed();
      for (int64_t r = 0; r < p.rows; ++r)
        for (int64_t c = 0; c < p.cols; ++c)
          store(to.data, to.dtype, place(to, transposed, p.row + r, p.col + c),
                load(message.data, message.dtype, p.packed_offset + r * p.cols + c));
    }
  }));
}

void ReferenceOps::pack(Stream& s, std::span<const MatrixBlock> blocks,
                        std::span<const OwnedMatrix> owned, const MatrixBatch* matrices,
                        TypedBuffer message, Findings* findings) {
  host::host_stream(s).enqueue(host::Task([=] {
    for (const MatrixBlock& p : blocks) {
      const MatrixBatch& from = matrices[p.matrix];
      const bool transposed = owned[static_cast<size_t>(p.matrix)].transposed();
      for (int64_t r = 0; r < p.rows; ++r) {
        for (int64_t c = 0; c < p.cols; ++c) {
          const float x =
              load(from.data, from.dtype, place(from, transposed, p.row + r, p.col + c));
          const int64_t at = p.packed_offset + r * p.cols + c;
          store(message.data, message.dtype, at, x);
          if (!std::isfinite(load(message.data, message.dtype, at))) note(findings, -1);
        }
      }
    }
  }));
}

void ReferenceOps::commit_muon(Stream& s, std::span<const ShardBlock> blocks,
                               const StepTables& tables, ConstTypedBuffer message,
                               const CommitCondition& vote_sum) {
  commit_momentum(s, blocks, tables, vote_sum);
  commit_update(s, blocks, tables, message, vote_sum);
}

void ReferenceOps::commit_momentum(Stream& s, std::span<const ShardBlock> blocks,
                                   const StepTables& tables, const CommitCondition& vote_sum) {
  for_elements(s, blocks, [=](const ShardBlock& block, int64_t i, int64_t, int64_t element) {
    const ParamView& p = tables.params[block.param];
    const MuonScalars& scalars = tables.groups[p.group];
    if (!p.active || !vote_sum.passes()) return;
    const float m = next_momentum(momentum(p, i), gradient(p, i, scalars.grad_scale), scalars);
    if (p.momentum_dtype == DType::kF32) return store(p.momentum, DType::kF32, i, m);
    static_cast<bf16*>(p.momentum)[i].bits = round_stochastic(
        m, random_bits(p.seed ^ kMomentumSeed, p.step, p.key, static_cast<uint64_t>(element)));
  });
}

void ReferenceOps::commit_update(Stream& s, std::span<const ShardBlock> blocks,
                                 const StepTables& tables, ConstTypedBuffer message,
                                 const CommitCondition& vote_sum) {
  for_elements(s, blocks, [=](const ShardBlock& block, int64_t i, int64_t at, int64_t element) {
    const ParamView& p = tables.params[block.param];
    if (!p.active || !vote_sum.passes()) return;
    const float w = muon_update(weight(p, i), load(message.data, message.dtype, at),
                                block.update_scale, block.decay_scale, tables.groups[p.group]);
    set_weight(p, i, element, p.row_factors ? w * p.row_factors[element / block.tensor_ld] : w,
               vote_sum);
  });
}

void ReferenceOps::commit_adamw(Stream& s, std::span<const int32_t> list,
                                std::span<const ShardBlock> blocks, const StepTables& tables,
                                const CommitCondition& vote_sum) {
  const auto update = [=](int32_t param, int64_t i, int64_t element) {
    const ParamView& p = tables.params[param];
    const AdamScalars& scalars = tables.adam[p.scalars];
    if (!p.active || !vote_sum.passes()) return;
    set_weight(p, i, element,
               adamw_update(weight(p, i), gradient(p, i, scalars.grad_scale),
                            static_cast<float*>(p.momentum)[i], p.variance[i], scalars),
               vote_sum);
  };
  host::host_stream(s).enqueue(host::Task([=] {
    for (const int32_t index : list)
      for (int64_t i = 0; i < tables.params[index].numel; ++i) update(index, i, i);
  }));
  for_elements(s, blocks, [=](const ShardBlock& block, int64_t i, int64_t, int64_t element) {
    update(block.param, i, element);
  });
}

}  // namespace reference_ops
