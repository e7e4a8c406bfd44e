#include <algorithm>
#include <cstring>

#include "host/dtype_dispatch.hpp"
#include "host/findings.hpp"
#include "host/host_ops.hpp"
#include "host/host_stream.hpp"
#include "host/row_passes.hpp"
#include "host/row_split.hpp"
#include "host/weight_block.hpp"

// The sum of partial gradients, and the AdamW update of a slice on its owner.

namespace muonrt::host {

namespace {

template <class Sent>
void accumulate_rows(Isa isa, const ShardBlock& block, int64_t first, int64_t last, float* sums,
                     const Sent* message, bool assign) {
  for_local_rows(block, first, last, [&](int64_t local, int64_t packed, int64_t n) {
    if (assign) {
      run_pass<AccumulatePass<Sent, true>>(isa, sums + local, message + packed, n);
    } else {
      run_pass<AccumulatePass<Sent, false>>(isa, sums + local, message + packed, n);
    }
  });
}

/// Calls body(local offset, packed offset, count) for parts of at most kBlock consecutive elements
/// in rows [first, last).
template <class Body>
void for_blocks(const ShardBlock& block, int64_t first, int64_t last, Body body) {
  for_local_rows(block, first, last, [&](int64_t local, int64_t packed, int64_t n) {
    for (int64_t at = 0; at < n; at += kBlock)
      body(local + at, packed + at, std::min(kBlock, n - at));
  });
}

template <class Sent>
uint32_t value_rows(Isa isa, const ShardBlock& block, int64_t first, int64_t last,
                    const ParamView& view, const AdamScalars& scalars, Sent* message) {
  uint32_t bad = 0;
  for_blocks(block, first, last, [&](int64_t local, int64_t packed, int64_t n) {
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

void take_rows(Isa isa, const ShardBlock& block, int64_t first, int64_t last, const ParamView& view,
               ConstTypedBuffer message, Findings* findings) {
  for_blocks(block, first, last, [&](int64_t local, int64_t packed, int64_t n) {
    float copy[kBlock];
    WeightBlock weights(isa, view, local, n);
    const float* values = read_block(isa, message.data, message.dtype, packed, n, copy);
    std::memcpy(weights.values(), values, sizeof(float) * static_cast<size_t>(n));
    weights.write(0, findings);
  });
}

}  // namespace

void HostOps::accumulate(Stream& stream, std::span<const ShardBlock> blocks, float* sums,
                         ConstTypedBuffer message, bool first) {
  if (blocks.empty()) return;
  host_stream(stream).enqueue(Task([=, this] {
    const auto add = [&](const ShardBlock& block, int64_t begin, int64_t end) {
      with_dtype(message.dtype, [&](auto sent) {
        accumulate_rows(isa_, block, begin, end, sums,
                        static_cast<const decltype(sent)*>(message.data), first);
      });
    };
    spread_range(count_elements(blocks),
                 [&](int64_t begin, int64_t end) { for_rows(blocks, begin, end, add); });
  }));
}

void HostOps::pack_adamw(Stream& stream, std::span<const ShardBlock> blocks,
                         const StepTables& tables, TypedBuffer message, Findings* findings) {
  if (blocks.empty()) return;
  host_stream(stream).enqueue(Task([=, this] {
    const auto pack = [&](const ShardBlock& block, int64_t first, int64_t last) {
      const ParamView& view = tables.params[block.param];
      const uint32_t bad = with_dtype(message.dtype, [&](auto sent) -> uint32_t {
        using Sent = decltype(sent);
        auto* out = static_cast<Sent*>(message.data);
        if (!view.active) {
          std::memset(static_cast<void*>(out + block.packed_offset + first * block.cols), 0,
                      sizeof(Sent) * static_cast<size_t>((last - first) * block.cols));
          return 0;
        }
        return value_rows(isa_, block, first, last, view, tables.adam[view.scalars], out);
      });
      if (bad) note_nonfinite(*findings, block.param);
    };
    spread_range(count_elements(blocks),
                 [&](int64_t begin, int64_t end) { for_rows(blocks, begin, end, pack); });
  }));
}

void HostOps::commit_values(Stream& stream, std::span<const ShardBlock> blocks,
                            const ParamView* params, ConstTypedBuffer message,
                            const CommitCondition& condition) {
  if (blocks.empty()) return;
  host_stream(stream).enqueue(Task([=, this] {
    if (!condition.passes()) return;
    const auto take = [&](const ShardBlock& block, int64_t first, int64_t last) {
      const ParamView& view = params[block.param];
      if (!view.active) return;
      take_rows(isa_, block, first, last, view, message, condition.findings);
    };
    spread_range(count_elements(blocks),
                 [&](int64_t begin, int64_t end) { for_rows(blocks, begin, end, take); });
  }));
}

}  // namespace muonrt::host
