#include <algorithm>

#include "host/host_ops.hpp"
#include "host/host_stream.hpp"
#include "host/weight_block.hpp"
#include "host/work_split.hpp"

namespace muonrt::host {

namespace {

/// Rows [first, end) of a piece in runs of neighbours, in blocks: body(local offset, packed offset,
/// index in the whole tensor, count). `apart`: rows that are apart in the tensor are so here.
template <class Body>
void for_blocks(const Piece& piece, int64_t first, int64_t end, bool apart, Body body) {
  const bool dense = piece.cols == piece.local_ld && !apart;
  const int64_t width = dense ? (end - first) * piece.cols : piece.cols;
  for (int64_t row = first; row < (dense ? first + 1 : end); ++row) {
    for (int64_t at = 0; at < width; at += kBlock) {
      body(piece.local_offset + row * piece.local_ld + at,
           piece.packed_offset + row * piece.cols + at,
           piece.tensor_index + row * piece.tensor_ld + at, std::min(kBlock, width - at));
    }
  }
}

/// At the rank that keeps the momentum for those who hold the weights.
void commit_momentum(Isa isa, const ParamView& view, int64_t at, int64_t n,
                     const MuonScalars& scalars) {
  float grads[kBlock], momenta[kBlock];
  const float* grad = read_block(isa, view.grad, view.grad_dtype, at, n, grads);
  auto* momentum =
      const_cast<float*>(read_block(isa, view.momentum, view.momentum_dtype, at, n, momenta));
  run_pass<MomentumPass>(isa, momentum, grad, n, &scalars);
  if (view.momentum_dtype != DType::kF32)
    run_pass<CastPass<float, bf16>>(isa, static_cast<const float*>(momentum),
                                    static_cast<bf16*>(view.momentum) + at, n);
}

void commit_rows(Isa isa, const Piece& piece, int64_t first, int64_t last, const ParamView& view,
                 const MuonScalars& scalars, const void* message, DType transport) {
  const bool apart = view.form == WeightForm::kStochastic || view.row_factors;
  for_blocks(
      piece, first, last, apart, [&](int64_t local, int64_t packed, int64_t element, int64_t n) {
        const float factor = view.row_factors ? view.row_factors[element / piece.tensor_ld] : 1.0f;
        if (!view.param) return commit_momentum(isa, view, local, n, scalars);
        if (!view.momentum) {
          float updates[kBlock];
          WeightBlock weights(isa, view, local, n);
          run_pass<UpdatePass>(isa, weights.values(),
                               read_block(isa, message, transport, packed, n, updates), n,
                               piece.update_scale, piece.decay_scale, factor, &scalars);
          return weights.write(piece.param, element);
        }
        float grads[kBlock], updates[kBlock], momenta[kBlock];
        WeightBlock weights(isa, view, local, n);
        const float* grad = read_block(isa, view.grad, view.grad_dtype, local, n, grads);
        const float* update = read_block(isa, message, transport, packed, n, updates);
        const bool in_place = view.momentum_dtype == DType::kF32;
        auto* momentum = const_cast<float*>(
            read_block(isa, view.momentum, view.momentum_dtype, local, n, momenta));
        run_pass<MuonPass>(isa, weights.values(), momentum, grad, update, n, piece.update_scale,
                           piece.decay_scale, factor, &scalars);
        if (!in_place)
          run_pass<CastPass<float, bf16>>(isa, static_cast<const float*>(momentum),
                                          static_cast<bf16*>(view.momentum) + local, n);
        weights.write(piece.param, element);
      });
}

/// @param element  index in the whole tensor of the first.
void adam_range(Isa isa, const ParamView& view, int32_t param, int64_t begin, int64_t count,
                int64_t element, const AdamScalars& scalars) {
  for (int64_t done = 0; done < count; done += kBlock) {
    const int64_t at = begin + done, n = std::min(kBlock, count - done);
    float grads[kBlock];
    WeightBlock weights(isa, view, at, n);
    run_pass<AdamPass>(isa, weights.values(), static_cast<float*>(view.momentum) + at,
                       view.variance + at,
                       read_block(isa, view.grad, view.grad_dtype, at, n, grads), n, &scalars);
    weights.write(param, element + done);
  }
}

}  // namespace

void HostOps::commit_muon(Stream& stream, std::span<const Piece> pieces, const ParamView* params,
                          const MuonScalars* groups, const void* message, DType transport,
                          const Ballot* sum, int64_t world, int64_t stamp) {
  if (pieces.empty()) return;
  host_stream(stream).enqueue(Task([=, this] {
    if (!passes(*sum, world, stamp)) return;
    const auto commit_piece = [&](const Piece& piece, int64_t first, int64_t last) {
      const ParamView& view = params[piece.param];
      if (view.active)
        commit_rows(isa_, piece, first, last, view, groups[view.group], message, transport);
    };
    spread_range(count_elements(pieces),
                 [&](int64_t begin, int64_t end) { for_rows(pieces, begin, end, commit_piece); });
  }));
}

void HostOps::commit_adamw(Stream& stream, std::span<const int32_t> list,
                           std::span<const Piece> pieces, const ParamView* params,
                           const AdamScalars* scalars, const Ballot* sum, int64_t world,
                           int64_t stamp) {
  if (list.empty() && pieces.empty()) return;
  host_stream(stream).enqueue(Task([=, this] {
    if (!passes(*sum, world, stamp)) return;
    for (const int32_t index : list) {
      const ParamView& view = params[index];
      if (!view.active) continue;
      spread_range(view.numel, [&](int64_t begin, int64_t end) {
        adam_range(isa_, view, index, begin, end - begin, begin, scalars[view.scalars]);
      });
    }
    const auto commit_piece = [&](const Piece& piece, int64_t first, int64_t last) {
      const ParamView& view = params[piece.param];
      if (!view.active) return;
      for_blocks(piece, first, last, true, [&](int64_t local, int64_t, int64_t element, int64_t n) {
        adam_range(isa_, view, piece.param, local, n, element, scalars[view.scalars]);
      });
    };
    spread_range(count_elements(pieces),
                 [&](int64_t begin, int64_t end) { for_rows(pieces, begin, end, commit_piece); });
  }));
}

}  // namespace muonrt::host
