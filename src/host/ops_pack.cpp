#include <cstring>

#include "host/dtype_dispatch.hpp"
#include "host/findings.hpp"
#include "host/host_ops.hpp"
#include "host/host_stream.hpp"
#include "host/row_passes.hpp"
#include "host/row_split.hpp"

namespace muonrt::host {

namespace {

template <class Grad, class Sent>
uint32_t partial_grad_rows(Isa isa, const ShardBlock& block, int64_t first, int64_t last,
                           const ParamView& view, Sent* message) {
  const auto* grad = static_cast<const Grad*>(view.grad);
  uint32_t bad = 0;
  for_local_rows(block, first, last, [&](int64_t local, int64_t packed, int64_t n) {
    bad |= run_pass<CastPass<Grad, Sent>>(isa, grad + local, message + packed, n);
  });
  return bad;
}

template <class Grad, class Momentum, class Sent>
uint32_t direction_rows(Isa isa, const ShardBlock& block, int64_t first, int64_t last,
                        const ParamView& view, const MuonScalars& scalars, Sent* message) {
  const auto* grad = static_cast<const Grad*>(view.grad);
  const auto* momentum = static_cast<const Momentum*>(view.momentum);
  uint32_t bad = 0;
  for_local_rows(block, first, last, [&](int64_t local, int64_t packed, int64_t n) {
    bad |= run_pass<DirectionPass<Grad, Momentum, Sent>>(isa, grad + local, momentum + local,
                                                         message + packed, n, &scalars);
  });
  return bad;
}

}  // namespace

template <bool kPartialGrad>
void HostOps::pack_gradients(Stream& stream, std::span<const ShardBlock> blocks,
                             const StepTables& tables, TypedBuffer message, Findings* findings) {
  if (blocks.empty()) return;
  host_stream(stream).enqueue(Task([=, this] {
    const auto pack_block = [&](const ShardBlock& block, int64_t first, int64_t last) {
      const ParamView& view = tables.params[block.param];
      with_dtype(message.dtype, [&](auto sent) {
        using Sent = decltype(sent);
        auto* out = static_cast<Sent*>(message.data);
        if (!view.active) {
          std::memset(static_cast<void*>(out + block.packed_offset + first * block.cols), 0,
                      sizeof(Sent) * static_cast<size_t>((last - first) * block.cols));
          return;
        }
        const uint32_t bad = with_dtype(view.grad_dtype, [&](auto grad) {
          using Grad = decltype(grad);
          if constexpr (kPartialGrad) {
            return partial_grad_rows<Grad>(isa_, block, first, last, view, out);
          } else {
            return with_dtype(view.momentum_dtype, [&](auto momentum) {
              return direction_rows<Grad, decltype(momentum)>(isa_, block, first, last, view,
                                                              tables.groups[view.group], out);
            });
          }
        });
        if (bad) note_nonfinite(*findings, block.param, kPartialGrad || bad > 1);
      });
    };
    spread_range(count_elements(blocks),
                 [&](int64_t begin, int64_t end) { for_rows(blocks, begin, end, pack_block); });
  }));
}

void HostOps::pack_direction(Stream& stream, std::span<const ShardBlock> blocks,
                             const StepTables& tables, TypedBuffer message, Findings* findings) {
  pack_gradients<false>(stream, blocks, tables, message, findings);
}

void HostOps::pack_partial_grad(Stream& stream, std::span<const ShardBlock> blocks,
                                const ParamView* params, TypedBuffer message, Findings* findings) {
  pack_gradients<true>(stream, blocks, {.params = params}, message, findings);
}

void HostOps::scan(Stream& stream, std::span<const int32_t> list, const ParamView* params,
                   Findings* findings) {
  if (list.empty()) return;
  host_stream(stream).enqueue(Task([=, this] {
    for (const int32_t index : list) {
      const ParamView& view = params[index];
      if (!view.active && !view.clip_only) continue;
      spread_range(view.grads(), [&](int64_t begin, int64_t end) {
        const bool bad = with_dtype(view.grad_dtype, [&](auto grad) {
          using Grad = decltype(grad);
          const auto* values = static_cast<const Grad*>(view.grad) + begin;
          const int64_t n = end - begin;
          return (view.variance
                      ? run_pass<ScanPass<Grad, true>>(isa_, values, view.grad_scale, n)
                      : run_pass<ScanPass<Grad, false>>(isa_, values, view.grad_scale, n)) != 0;
        });
        if (bad) note_nonfinite(*findings, index);
      });
    }
  }));
}

void HostOps::check_masters(Stream& stream, std::span<const int32_t> list, const ParamView* params,
                            Findings* findings) {
  if (list.empty()) return;
  host_stream(stream).enqueue(Task([=, this] {
    for (const int32_t index : list) {
      const ParamView& view = params[index];
      if (!view.active || view.form != WeightForm::kMaster) continue;
      spread_range(view.numel, [&](int64_t begin, int64_t end) {
        const bool stale = with_dtype(view.param_dtype, [&](auto weight) {
          using Weight = decltype(weight);
          const auto* weights = static_cast<const Weight*>(view.param) + begin;
          const float* masters = view.master + begin;
          return (view.rounded_by_caller
                      ? run_pass<StalePass<Weight, true>>(isa_, weights, masters, end - begin)
                      : run_pass<StalePass<Weight, false>>(isa_, weights, masters, end - begin)) !=
                 0;
        });
        if (stale) note_stale(*findings, index);
      });
    }
  }));
}

}  // namespace muonrt::host
