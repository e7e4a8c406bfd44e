#include "host/dtype_dispatch.hpp"
#include "host/host_ops.hpp"
#include "host/host_stream.hpp"
#include "host/row_passes.hpp"
#include "host/work_split.hpp"

namespace muonrt::host {

namespace {

template <class Param, class Grad, class Wire>
void commit_rows(Isa isa, const Piece& piece, int64_t first, int64_t last, const ParamView& view,
                 const MuonScalars& scalars, const Wire* message) {
  auto* param = static_cast<Param*>(view.param);
  const auto* grad = static_cast<const Grad*>(view.grad);
  for_local_rows(piece, first, last, [&](int64_t local, int64_t packed, int64_t n) {
    if (view.master) {
      run_pass<CommitPass<Param, Grad, Wire, true>>(
          isa, param + local, view.master + local, view.momentum + local, grad + local,
          message + packed, n, piece.update_scale, &scalars);
    } else {
      run_pass<CommitPass<Param, Grad, Wire, false>>(
          isa, param + local, static_cast<float*>(nullptr), view.momentum + local, grad + local,
          message + packed, n, piece.update_scale, &scalars);
    }
  });
}

template <class Param, class Grad>
void adam_range(Isa isa, const ParamView& view, int64_t begin, int64_t end,
                const AdamScalars& scalars) {
  auto* param = static_cast<Param*>(view.param) + begin;
  const auto* grad = static_cast<const Grad*>(view.grad) + begin;
  float *first = view.momentum + begin, *second = view.variance + begin;
  if (view.master) {
    run_pass<AdamPass<Param, Grad, true>>(isa, param, view.master + begin, first, second, grad,
                                          end - begin, &scalars);
  } else {
    run_pass<AdamPass<Param, Grad, false>>(isa, param, static_cast<float*>(nullptr), first, second,
                                           grad, end - begin, &scalars);
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
      if (!view.active) return;
      with_dtype(view.param_dtype, [&](auto param) {
        with_dtype(view.grad_dtype, [&](auto grad) {
          with_dtype(transport, [&](auto wire) {
            commit_rows<decltype(param), decltype(grad)>(
                isa_, piece, first, last, view, groups[view.group],
                static_cast<const decltype(wire)*>(message));
          });
        });
      });
    };
    spread_range(count_elements(pieces),
                 [&](int64_t begin, int64_t end) { for_rows(pieces, begin, end, commit_piece); });
  }));
}

void HostOps::commit_adamw(Stream& stream, std::span<const int32_t> list, const ParamView* params,
                           const AdamScalars* scalars, const Ballot* sum, int64_t world,
                           int64_t stamp) {
  if (list.empty()) return;
  host_stream(stream).enqueue(Task([=, this] {
    if (!passes(*sum, world, stamp)) return;
    for (const int32_t index : list) {
      const ParamView& view = params[index];
      if (!view.active) continue;
      spread_range(view.numel, [&](int64_t begin, int64_t end) {
        with_dtype(view.param_dtype, [&](auto param) {
          with_dtype(view.grad_dtype, [&](auto grad) {
            adam_range<decltype(param), decltype(grad)>(isa_, view, begin, end,
                                                        scalars[view.scalars]);
          });
        });
      });
    }
  }));
}

}  // namespace muonrt::host
