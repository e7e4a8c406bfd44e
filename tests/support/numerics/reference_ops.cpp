#include "support/numerics/reference_ops.hpp"

#include <cmath>

#include "backend/update_rules.hpp"
#include "backend/weight_bits.hpp"
#include "textbook/textbook.hpp"

namespace reference {

using namespace muonrt;

float load(const void* data, DType dtype, int64_t i) {
  if (dtype == DType::kF32) return static_cast<const float*>(data)[i];
  if (dtype == DType::kF16)
    return static_cast<float>(textbook::half_value(static_cast<const uint16_t*>(data)[i]));
  return to_f32(static_cast<const bf16*>(data)[i]);
}

void store(void* data, DType dtype, int64_t i, float x) {
  if (dtype == DType::kF32)
    static_cast<float*>(data)[i] = x;
  else if (dtype == DType::kF16)
    static_cast<uint16_t*>(data)[i] = textbook::half_bits(static_cast<double>(x));
  else
    static_cast<bf16*>(data)[i] = to_bf16(x);
}

namespace {

/// Notes a value that is not finite; `param` is -1 if it belongs to no parameter.
/// @param in_f32  it was so before it was cast.
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

void note_written(const void* data, DType dtype, int64_t i, const Verdict& verdict) {
  if (verdict.findings && !std::isfinite(load(data, dtype, i))) verdict.findings->written = 1;
}

/// @param element  index in the whole tensor.
void set_weight(const ParamView& p, int64_t i, int64_t element, float w, const Verdict& verdict) {
  if (p.form == WeightForm::kMaster) p.master[i] = w;
  if (p.form == WeightForm::kPlain || p.form == WeightForm::kMaster) {
    store(p.param, p.param_dtype, i, w);
  } else if (p.form == WeightForm::kRemainder) {
    const SplitWeight split = split_weight(w);
    static_cast<bf16*>(p.param)[i].bits = split.high;
    p.remainder[i] = split.low;
  } else {
    static_cast<bf16*>(p.param)[i].bits =
        round_stochastic(w, random_bits(p.seed, p.step, p.key, static_cast<uint64_t>(element)));
  }
  note_written(p.param, p.param_dtype, i, verdict);
}

/// Enqueues body(piece, i, at, element) for every element: its places in the parameter's arrays, in
/// the message and in the whole tensor.
template <class Body>
void for_elements(Stream& stream, std::span<const Piece> pieces, Body body) {
  host::host_stream(stream).enqueue(host::Task([=] {
    for (const Piece& p : pieces)
      for (int64_t r = 0; r < p.rows; ++r)
        for (int64_t c = 0; c < p.cols; ++c)
          body(p, p.local_offset + r * p.local_ld + c, p.packed_offset + r * p.cols + c,
               p.tensor_index + r * p.tensor_ld + c);
  }));
}

float momentum(const ParamView& p, int64_t i) { return load(p.momentum, p.momentum_dtype, i); }

/// Index of element (i, j) of matrix b, which is entry (row, col) of what it holds.
int64_t place(const MatrixBatch& b, bool transposed, int64_t row, int64_t col) {
  return transposed ? col * b.ld + row : row * b.ld + col;
}

}  // namespace

void ReferenceOps::pack_direction(Stream& s, std::span<const Piece> pieces,
                                  const StepTables& tables, Wire message, Findings* findings) {
  for_elements(s, pieces, [=](const Piece& piece, int64_t i, int64_t at, int64_t) {
    const ParamView& p = tables.params[piece.param];
    const MuonScalars& scalars = tables.groups[p.group];
    if (!p.active) return store(message.data, message.dtype, at, 0.0f);
    const float g = gradient(p, i, scalars.grad_scale);
    const float sent = direction(next_momentum(momentum(p, i), g, scalars), g, scalars);
    store(message.data, message.dtype, at, sent);
    const bool in_f32 = !std::isfinite(g) || !std::isfinite(sent);
    if (in_f32 || !std::isfinite(load(message.data, message.dtype, at)))
      note(findings, piece.param, in_f32);
  });
}

void ReferenceOps::pack_addend(Stream& s, std::span<const Piece> pieces, const ParamView* params,
                               Wire message, Findings* findings) {
  for_elements(s, pieces, [=](const Piece& piece, int64_t i, int64_t at, int64_t) {
    const ParamView& p = params[piece.param];
    store(message.data, message.dtype, at, p.active ? load(p.grad, p.grad_dtype, i) : 0.0f);
    if (!std::isfinite(load(message.data, message.dtype, at))) note(findings, piece.param);
  });
}

void ReferenceOps::accumulate(Stream& s, std::span<const Piece> pieces, float* sums,
                              ConstWire message, bool first) {
  for_elements(s, pieces, [=](const Piece&, int64_t i, int64_t at, int64_t) {
    const float x = load(message.data, message.dtype, at);
    sums[i] = first ? x : sums[i] + x;
  });
}

void ReferenceOps::pack_adamw(Stream& s, std::span<const Piece> pieces, const StepTables& tables,
                              Wire message, Findings* findings) {
  for_elements(s, pieces, [=](const Piece& piece, int64_t i, int64_t at, int64_t) {
    const ParamView& p = tables.params[piece.param];
    const AdamScalars& scalars = tables.adam[p.scalars];
    if (!p.active) return store(message.data, message.dtype, at, 0.0f);
    const float g = gradient(p, i, scalars.grad_scale);
    if (!std::isfinite(g * g)) note(findings, piece.param);
    float m = momentum(p, i), v = p.variance[i];
    store(message.data, message.dtype, at, adamw_update(weight(p, i), g, m, v, scalars));
  });
}

void ReferenceOps::commit_values(Stream& s, std::span<const Piece> pieces, const ParamView* params,
                                 ConstWire message, const Verdict& verdict) {
  for_elements(s, pieces, [=](const Piece& piece, int64_t i, int64_t at, int64_t) {
    const ParamView& p = params[piece.param];
    if (p.active && verdict.passes())
      set_weight(p, i, 0, load(message.data, message.dtype, at), verdict);
  });
}

void ReferenceOps::unpack(Stream& s, std::span<const MatrixPiece> pieces,
                          std::span<const Owned> owned, const MatrixBatch* matrices,
                          ConstWire message) {
  host::host_stream(s).enqueue(host::Task([=] {
    for (const MatrixPiece& p : pieces) {
      const MatrixBatch& to = matrices[p.matrix];
      const bool transposed = owned[static_cast<size_t>(p.matrix)].transposed();
      for (int64_t r = 0; r < p.rows; ++r)
        for (int64_t c = 0; c < p.cols; ++c)
          store(to.data, to.dtype, place(to, transposed, p.row + r, p.col + c),
                load(message.data, message.dtype, p.packed_offset + r * p.cols + c));
    }
  }));
}

void ReferenceOps::pack(Stream& s, std::span<const MatrixPiece> pieces,
                        std::span<const Owned> owned, const MatrixBatch* matrices, Wire message,
                        Findings* findings) {
  host::host_stream(s).enqueue(host::Task([=] {
    for (const MatrixPiece& p : pieces) {
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

void ReferenceOps::commit_muon(Stream& s, std::span<const Piece> pieces, const StepTables& tables,
                               ConstWire message, const Verdict& verdict) {
  commit_momentum(s, pieces, tables, verdict);
  commit_update(s, pieces, tables, message, verdict);
}

void ReferenceOps::commit_momentum(Stream& s, std::span<const Piece> pieces,
                                   const StepTables& tables, const Verdict& verdict) {
  for_elements(s, pieces, [=](const Piece& piece, int64_t i, int64_t, int64_t element) {
    const ParamView& p = tables.params[piece.param];
    const MuonScalars& scalars = tables.groups[p.group];
    if (!p.active || !verdict.passes()) return;
    const float m = next_momentum(momentum(p, i), gradient(p, i, scalars.grad_scale), scalars);
    if (p.momentum_dtype == DType::kF32) return store(p.momentum, DType::kF32, i, m);
    static_cast<bf16*>(p.momentum)[i].bits = round_stochastic(
        m, random_bits(p.seed ^ kMomentumSeed, p.step, p.key, static_cast<uint64_t>(element)));
  });
}

void ReferenceOps::commit_update(Stream& s, std::span<const Piece> pieces, const StepTables& tables,
                                 ConstWire message, const Verdict& verdict) {
  for_elements(s, pieces, [=](const Piece& piece, int64_t i, int64_t at, int64_t element) {
    const ParamView& p = tables.params[piece.param];
    if (!p.active || !verdict.passes()) return;
    const float w = muon_update(weight(p, i), load(message.data, message.dtype, at),
                                piece.update_scale, piece.decay_scale, tables.groups[p.group]);
    set_weight(p, i, element, p.row_factors ? w * p.row_factors[element / piece.tensor_ld] : w,
               verdict);
  });
}

void ReferenceOps::commit_adamw(Stream& s, std::span<const int32_t> list,
                                std::span<const Piece> pieces, const StepTables& tables,
                                const Verdict& verdict) {
  const auto update = [=](int32_t param, int64_t i, int64_t element) {
    const ParamView& p = tables.params[param];
    const AdamScalars& scalars = tables.adam[p.scalars];
    if (!p.active || !verdict.passes()) return;
    set_weight(p, i, element,
               adamw_update(weight(p, i), gradient(p, i, scalars.grad_scale),
                            static_cast<float*>(p.momentum)[i], p.variance[i], scalars),
               verdict);
  };
  host::host_stream(s).enqueue(host::Task([=] {
    for (const int32_t index : list)
      for (int64_t i = 0; i < tables.params[index].numel; ++i) update(index, i, i);
  }));
  for_elements(s, pieces, [=](const Piece& piece, int64_t i, int64_t, int64_t element) {
    update(piece.param, i, element);
  });
}

}  // namespace reference
