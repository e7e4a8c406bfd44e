#include <algorithm>
#include <cstring>

#include "host/dtype_dispatch.hpp"
#include "host/findings.hpp"
#include "host/host_ops.hpp"
#include "host/host_stream.hpp"
#include "host/row_passes.hpp"
#include "host/weight_block.hpp"
#include "host/work_split.hpp"

// Gradients that arrive as addends: their sum, and AdamW of a slice at the rank that owns it.

namespace muonrt::host {

namespace {

template <class Sent>
void accumulate_rows(Isa isa, const Piece& piece, int64_t first, int64_t last, float* sums,
                     const Sent* message, bool assign) {
  for_local_rows(piece, first, last, [&](int64_t local, int64_t packed, int64_t n) {
    if (assign) {
      run_pass<AccumulatePass<Sent, true>>(isa, sums + local, message + packed, n);
    } else {
      run_pass<AccumulatePass<Sent, false>>(isa, sums + local, message + packed, n);
    }
  });
}

/// Rows [first, last) of a piece in blocks: body(local offset, packed offset, count).
template <class Body>
void for_blocks(const Piece& piece, int64_t first, int64_t last, Body body) {
  for_local_rows(piece, first, last, [&](int64_t local, int64_t packed, int64_t n) {
    for (int64_t at = 0; at < n; at += kBlock)
      body(local + at, packed + at, std::min(kBlock, n - at));
  });
}

template <class Sent>
uint32_t value_rows(Isa isa, const Piece& piece, int64_t first, int64_t last, const ParamView& view,
                    const AdamScalars& scalars, Sent* message) {
  uint32_t bad = 0;
  for_blocks(piece, first, last, [&](int64_t local, int64_t packed, int64_t n) {
    float grads[kBlock];
    WeightBlock weights(isa, view, local, n);
    const float* weight = weights.values();
    const float* moment = static_cast<const float*>(view.momentum) + local;
    const float* variance = view.variance + local;
    bad |= run_pass<AdamValuePass<Sent>>(
        isa, weight, moment, variance, read_block(isa, view.grad, view.grad_dtype, local, n, grads),
        message + packed, n, &scalars);
  });
  return bad;
}

void take_rows(Isa isa, const Piece& piece, int64_t first, int64_t last, const ParamView& view,
               ConstWire message, Findings* findings) {
  for_blocks(piece, first, last, [&](int64_t local, int64_t packed, int64_t n) {
    float copy[kBlock];
    WeightBlock weights(isa, view, local, n);
    const float* values = read_block(isa, message.data, message.dtype, packed, n, copy);
    std::memcpy(weights.values(), values, sizeof(float) * static_cast<size_t>(n));
    weights.write(0, findings);
  });
}

}  // namespace

void HostOps::accumulate(Stream& stream, std::span<const Piece> pieces, float* sums,
                         ConstWire message, bool first) {
  if (pieces.empty()) return;
  host_stream(stream).enqueue(Task([=, this] {
    const auto add = [&](const Piece& piece, int64_t begin, int64_t end) {
      with_dtype(message.dtype, [&](auto sent) {
        accumulate_rows(isa_, piece, begin, end, sums,
                        static_cast<const decltype(sent)*>(message.data), first);
      });
    };
    spread_range(count_elements(pieces),
                 [&](int64_t begin, int64_t end) { for_rows(pieces, begin, end, add); });
  }));
}

void HostOps::pack_adamw(Stream& stream, std::span<const Piece> pieces, const StepTables& tables,
                         Wire message, Findings* findings) {
  if (pieces.empty()) return;
  host_stream(stream).enqueue(Task([=, this] {
    const auto pack = [&](const Piece& piece, int64_t first, int64_t last) {
      const ParamView& view = tables.params[piece.param];
      const uint32_t bad = with_dtype(message.dtype, [&](auto sent) -> uint32_t {
        using Sent = decltype(sent);
        auto* out = static_cast<Sent*>(message.data);
        if (!view.active) {
          std::memset(static_cast<void*>(out + piece.packed_offset + first * piece.cols), 0,
                      sizeof(Sent) * static_cast<size_t>((last - first) * piece.cols));
          return 0;
        }
        return value_rows(isa_, piece, first, last, view, tables.adam[view.scalars], out);
      });
      if (bad) note_nonfinite(*findings, piece.param);
    };
    spread_range(count_elements(pieces),
                 [&](int64_t begin, int64_t end) { for_rows(pieces, begin, end, pack); });
  }));
}

void HostOps::commit_values(Stream& stream, std::span<const Piece> pieces, const ParamView* params,
                            ConstWire message, const Verdict& verdict) {
  if (pieces.empty()) return;
  host_stream(stream).enqueue(Task([=, this] {
    if (!verdict.passes()) return;
    const auto take = [&](const Piece& piece, int64_t first, int64_t last) {
      const ParamView& view = params[piece.param];
      if (!view.active) return;
      take_rows(isa_, piece, first, last, view, message, verdict.findings);
    };
    spread_range(count_elements(pieces),
                 [&](int64_t begin, int64_t end) { for_rows(pieces, begin, end, take); });
  }));
}

}  // namespace muonrt::host
