#include "support/numerics/reference_ops.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

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

void note(Findings* findings, int32_t param, bool in_f32) {
  findings->nonfinite = 1;
  if (param < 0) return;
  const auto lower = [&](int64_t& first) { first = first < 0 || param < first ? param : first; };
  lower(findings->first_param);
  if (in_f32) lower(findings->first_in_f32);
}

namespace {

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

/// body(piece, i, at, element) for every element: its places in the parameter's arrays, in the
/// message and in the whole tensor.
template <class Body>
void for_elements(std::span<const Piece> pieces, const Body& body) {
  for (const Piece& p : pieces)
    for (int64_t r = 0; r < p.rows; ++r)
      for (int64_t c = 0; c < p.cols; ++c)
        body(p, p.local_offset + r * p.local_ld + c, p.packed_offset + r * p.cols + c,
             p.tensor_index + r * p.tensor_ld + c);
}

float momentum(const ParamView& p, int64_t i) { return load(p.momentum, p.momentum_dtype, i); }

/// Index of element (i, j) of matrix b, which is entry (row, col) of what it holds.
int64_t place(const MatrixBatch& b, bool transposed, int64_t row, int64_t col) {
  return transposed ? col * b.ld + row : row * b.ld + col;
}

}  // namespace

int64_t ReferenceOps::leading_dimension(int64_t cols, DType) const { return cols + 3; }

void ReferenceOps::reserve(int64_t m, int64_t n, int64_t k, DType) {
  reserved.push_back({m, n, k, 1, m == n, true});
}

void ReferenceOps::fill(Stream&, void* memory, unsigned char value, int64_t bytes) {
  std::memset(memory, value, static_cast<size_t>(bytes));
}

void ReferenceOps::copy(Stream&, void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void ReferenceOps::pack_direction(Stream&, std::span<const Piece> pieces, const StepTables& tables,
                                  Wire message, Findings* findings) {
  for_elements(pieces, [&](const Piece& piece, int64_t i, int64_t at, int64_t) {
    const ParamView& p = tables.params[piece.param];
    const MuonScalars& s = tables.groups[p.group];
    if (!p.active) return store(message.data, message.dtype, at, 0.0f);
    const float g = gradient(p, i, s.grad_scale);
    const float sent = direction(next_momentum(momentum(p, i), g, s), g, s);
    store(message.data, message.dtype, at, sent);
    const bool in_f32 = !std::isfinite(g) || !std::isfinite(sent);
    if (in_f32 || !std::isfinite(load(message.data, message.dtype, at)))
      note(findings, piece.param, in_f32);
  });
}

void ReferenceOps::pack_addend(Stream&, std::span<const Piece> pieces, const ParamView* params,
                               Wire message, Findings* findings) {
  for_elements(pieces, [&](const Piece& piece, int64_t i, int64_t at, int64_t) {
    const ParamView& p = params[piece.param];
    store(message.data, message.dtype, at, p.active ? load(p.grad, p.grad_dtype, i) : 0.0f);
    if (!std::isfinite(load(message.data, message.dtype, at))) note(findings, piece.param);
  });
}

void ReferenceOps::accumulate(Stream&, std::span<const Piece> pieces, float* sums,
                              ConstWire message, bool first) {
  for_elements(pieces, [&](const Piece&, int64_t i, int64_t at, int64_t) {
    const float x = load(message.data, message.dtype, at);
    sums[i] = first ? x : sums[i] + x;
  });
}

void ReferenceOps::pack_adamw(Stream&, std::span<const Piece> pieces, const StepTables& tables,
                              Wire message, Findings* findings) {
  for_elements(pieces, [&](const Piece& piece, int64_t i, int64_t at, int64_t) {
    const ParamView& p = tables.params[piece.param];
    const AdamScalars& s = tables.adam[p.scalars];
    if (!p.active) return store(message.data, message.dtype, at, 0.0f);
    const float g = gradient(p, i, s.grad_scale);
    if (!std::isfinite(g * g)) note(findings, piece.param);
    float m = momentum(p, i), v = p.variance[i];
    store(message.data, message.dtype, at, adamw_update(weight(p, i), g, m, v, s));
  });
}

void ReferenceOps::commit_values(Stream&, std::span<const Piece> pieces, const ParamView* params,
                                 ConstWire message, const Verdict& verdict) {
  if (!verdict.passes()) return;
  for_elements(pieces, [&](const Piece& piece, int64_t i, int64_t at, int64_t) {
    const ParamView& p = params[piece.param];
    if (p.active) set_weight(p, i, 0, load(message.data, message.dtype, at), verdict);
  });
}

void ReferenceOps::scan(Stream&, std::span<const int32_t> list, const ParamView* params,
                        Findings* findings) {
  for (const int32_t index : list) {
    const ParamView& p = params[index];
    if (!p.active && !p.watched) continue;
    for (int64_t i = 0; i < p.numel; ++i) {
      const float x = load(p.grad, p.grad_dtype, i) * p.grad_scale;
      if (!std::isfinite(p.variance ? x * x : x)) note(findings, index);
    }
  }
}

void ReferenceOps::unpack(Stream&, std::span<const MatrixPiece> pieces,
                          std::span<const Owned> owned, const MatrixBatch* matrices,
                          ConstWire message) {
  for (const MatrixPiece& p : pieces) {
    const MatrixBatch& to = matrices[p.matrix];
    const bool transposed = owned[static_cast<size_t>(p.matrix)].transposed();
    for (int64_t r = 0; r < p.rows; ++r)
      for (int64_t c = 0; c < p.cols; ++c)
        store(to.data, to.dtype, place(to, transposed, p.row + r, p.col + c),
              load(message.data, message.dtype, p.packed_offset + r * p.cols + c));
  }
}

void ReferenceOps::pack(Stream&, std::span<const MatrixPiece> pieces, std::span<const Owned> owned,
                        const MatrixBatch* matrices, Wire message, Findings* findings) {
  for (const MatrixPiece& p : pieces) {
    const MatrixBatch& from = matrices[p.matrix];
    const bool transposed = owned[static_cast<size_t>(p.matrix)].transposed();
    for (int64_t r = 0; r < p.rows; ++r) {
      for (int64_t c = 0; c < p.cols; ++c) {
        const float x = load(from.data, from.dtype, place(from, transposed, p.row + r, p.col + c));
        const int64_t at = p.packed_offset + r * p.cols + c;
        store(message.data, message.dtype, at, x);
        if (!std::isfinite(load(message.data, message.dtype, at))) note(findings, -1);
      }
    }
  }
}

void ReferenceOps::normalize(Stream&, const MatrixBatch& in, const MatrixBatch& out,
                             const Normalization& how, Findings* findings) {
  for (int64_t k = 0; k < in.count; ++k) {
    double sum = 0;
    for (int64_t i = 0; i < in.rows; ++i) {
      for (int64_t j = 0; j < in.cols; ++j) {
        const double x = load(in.data, in.dtype, k * in.stride + i * in.ld + j);
        sum += x * x;
      }
    }
    if (sum == 0) ++findings->zero_matrices;
    // A matrix that is not finite becomes NaN as a whole, so that any piece of it shows it.
    double divisor =
        static_cast<double>(how.safety) * std::sqrt(sum) + static_cast<double>(how.added);
    divisor = std::fmax(divisor, static_cast<double>(how.least));
    if (sum == 0) divisor = 1.0;
    if (!std::isfinite(sum)) divisor = std::nan("");
    for (int64_t i = 0; i < in.rows; ++i)
      for (int64_t j = 0; j < in.cols; ++j)
        store(out.data, out.dtype, k * out.stride + i * out.ld + j,
              static_cast<float>(load(in.data, in.dtype, k * in.stride + i * in.ld + j) / divisor));
  }
}

void ReferenceOps::scale_rows(Stream&, const MatrixBatch& gram, const MatrixBatch& x,
                              const MatrixBatch& factors, const AolRule& rule) {
  const int64_t m = gram.rows;
  for (int64_t k = 0; k < gram.count; ++k) {
    const auto scale = [&](const MatrixBatch& b, int64_t i, int64_t j, double by) {
      const int64_t at = k * b.stride + i * b.ld + j;
      store(b.data, b.dtype, at,
            static_cast<float>(static_cast<double>(load(b.data, b.dtype, at)) * by));
    };
    std::vector<double> s;
    for (int64_t i = 0; i < m; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < m; ++j)
        sum += std::fabs(
            static_cast<double>(load(gram.data, gram.dtype, k * gram.stride + i * gram.ld + j)));
      s.push_back(1 / (static_cast<double>(rule.safety) *
                       std::sqrt(std::fmax(sum, static_cast<double>(rule.least)))));
      store(factors.data, factors.dtype, k * factors.stride + i, static_cast<float>(s.back()));
    }
    for (int64_t i = 0; i < m; ++i) {
      const double si = s[static_cast<size_t>(i)];
      for (int64_t j = 0; j < x.cols; ++j) scale(x, i, j, si);
      for (int64_t j = 0; j < m; ++j) scale(gram, i, j, si * s[static_cast<size_t>(j)]);
    }
  }
}

void ReferenceOps::multiply(Stream&, std::span<const Product> products) {
  for (const Product& p : products) multiply(p);
}

void ReferenceOps::multiply(const Product& p) {
  const int64_t m = p.c.rows, n = p.c.cols, depth = p.a.cols;
  asked.push_back({m, n, depth, p.c.count, p.symmetric, p.alpha != 0.0f});
  const auto at = [](const MatrixBatch& b, int64_t k, int64_t i, int64_t j) {
    return static_cast<double>(load(b.data, b.dtype, k * b.stride + i * b.ld + j));
  };
  for (int64_t k = 0; k < p.c.count; ++k) {
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = p.symmetric ? i : 0; j < n; ++j) {
        double sum = 0;
        for (int64_t l = 0; l < depth && p.alpha != 0.0f; ++l)
          sum += at(p.a, k, i, l) * (p.transpose_b ? at(p.b, k, j, l) : at(p.b, k, l, j));
        double x = static_cast<double>(p.alpha) * sum;
        if (p.d.data && p.beta != 0.0f) x += static_cast<double>(p.beta) * at(p.d, k, i, j);
        if (i == j) x += static_cast<double>(p.gamma);
        store(p.c.data, p.c.dtype, k * p.c.stride + i * p.c.ld + j, static_cast<float>(x));
        if (p.symmetric)
          store(p.c.data, p.c.dtype, k * p.c.stride + j * p.c.ld + i, static_cast<float>(x));
      }
    }
  }
}

void ReferenceOps::add_identity(Stream&, const MatrixBatch& x, float gamma) {
  for (int64_t k = 0; k < x.count; ++k) {
    for (int64_t i = 0; i < x.rows; ++i) {
      const int64_t at = k * x.stride + i * (x.ld + 1);
      store(x.data, x.dtype, at,
            static_cast<float>(static_cast<double>(load(x.data, x.dtype, at)) + gamma));
    }
  }
}

void ReferenceOps::cast_ballot(Stream&, Ballot* ballot, const Findings* findings, int64_t step,
                               int64_t orthogonalized, bool local_ok) {
  const bool well = local_ok && findings->failed == 0;
  *ballot = Ballot{well && findings->nonfinite == 0 ? 1 : 0,
                   step,
                   well ? findings->nonfinite : 0,
                   orthogonalized,
                   findings->zero_matrices,
                   findings->factor / 65536 << 32 | findings->factor % 65536,
                   (findings->factor % 65536) * (findings->factor % 65536),
                   (findings->factor / 65536) * (findings->factor / 65536),
                   findings->gradient_replicas,
                   findings->weight_replicas};
}

void ReferenceOps::commit_muon(Stream& stream, std::span<const Piece> pieces,
                               const StepTables& tables, ConstWire message,
                               const Verdict& verdict) {
  commit_momentum(stream, pieces, tables, verdict);
  commit_update(stream, pieces, tables, message, verdict);
}

void ReferenceOps::commit_momentum(Stream&, std::span<const Piece> pieces, const StepTables& tables,
                                   const Verdict& verdict) {
  if (!verdict.passes()) return;
  for_elements(pieces, [&](const Piece& piece, int64_t i, int64_t, int64_t element) {
    const ParamView& p = tables.params[piece.param];
    const MuonScalars& s = tables.groups[p.group];
    if (!p.active) return;
    const float m = next_momentum(momentum(p, i), gradient(p, i, s.grad_scale), s);
    if (p.momentum_dtype == DType::kF32) return store(p.momentum, DType::kF32, i, m);
    static_cast<bf16*>(p.momentum)[i].bits = round_stochastic(
        m, random_bits(p.seed ^ kMomentumSeed, p.step, p.key, static_cast<uint64_t>(element)));
  });
}

void ReferenceOps::commit_update(Stream&, std::span<const Piece> pieces, const StepTables& tables,
                                 ConstWire message, const Verdict& verdict) {
  if (!verdict.passes()) return;
  for_elements(pieces, [&](const Piece& piece, int64_t i, int64_t at, int64_t element) {
    const ParamView& p = tables.params[piece.param];
    if (!p.active) return;
    const float w = muon_update(weight(p, i), load(message.data, message.dtype, at),
                                piece.update_scale, piece.decay_scale, tables.groups[p.group]);
    set_weight(p, i, element, p.row_factors ? w * p.row_factors[element / piece.tensor_ld] : w,
               verdict);
  });
}

void ReferenceOps::commit_adamw(Stream&, std::span<const int32_t> list,
                                std::span<const Piece> pieces, const StepTables& tables,
                                const Verdict& verdict) {
  if (!verdict.passes()) return;
  const auto update = [&](int32_t param, int64_t i, int64_t element) {
    const ParamView& p = tables.params[param];
    const AdamScalars& s = tables.adam[p.scalars];
    if (!p.active) return;
    set_weight(p, i, element,
               adamw_update(weight(p, i), gradient(p, i, s.grad_scale),
                            static_cast<float*>(p.momentum)[i], p.variance[i], s),
               verdict);
  };
  for (const int32_t index : list)
    for (int64_t i = 0; i < tables.params[index].numel; ++i) update(index, i, i);
  for_elements(pieces, [&](const Piece& piece, int64_t i, int64_t, int64_t element) {
    update(piece.param, i, element);
  });
}

}  // namespace reference
