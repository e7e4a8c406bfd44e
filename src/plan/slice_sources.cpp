#include "plan/slice_sources.hpp"

#include <algorithm>

#include "base/checked.hpp"

namespace muonrt {

namespace {

Layout as_matrix(const Layout& layout) { return layout.dims() > 2 ? layout.as_matrix() : layout; }

/// Adds the blocks that are both in `block` and in elements [begin, end) of the local buffer: the
/// last part of a row, whole rows, and the first part of a row. Any of them may be missing.
void add_slice(const Block& block, int64_t begin, int64_t end, std::vector<Block>& out) {
  const auto add = [&](int64_t row, int64_t rows, int64_t col, int64_t cols) {
    if (rows <= 0 || cols <= 0) return;
    out.push_back({block.row + row, block.col + col, rows, cols,
                   block.local_offset + row * block.local_ld + col, block.local_ld});
  };
  const int64_t ld = std::max(block.local_ld, block.cols);
  const int64_t first = std::max<int64_t>(0, begin - block.local_offset);
  const int64_t last = end - block.local_offset;  // both relative to the block's first element
  if (last <= 0) return;
  const int64_t row = first / ld, stop = std::min(block.rows, last / ld);
  // The first column of the range in `row`, and the column of row `stop` before which the range
  // ends.
  const int64_t from = std::min(block.cols, first % ld);
  const int64_t up_to = stop < block.rows ? std::min(block.cols, last % ld) : 0;
  if (row >= block.rows) return;
  if (row == stop) return add(row, 1, from, up_to - from);
  add(row, 1, from, block.cols - from);
  add(row + 1, stop - row - 1, 0, block.cols);
  add(stop, 1, 0, up_to);
}

}  // namespace

SliceSources::SliceSources(const ParamSpec& spec)
    : param_(as_matrix(spec.layout)), grad_(as_matrix(*spec.grad_layout)) {
  holders_.resize(static_cast<size_t>(grad_.replicas() / grad_.partial_count()));
  for (const int32_t rank : grad_.mesh().ranks())
    holders_[static_cast<size_t>(grad_.full_replica_index(rank))].push_back(rank);
  for (std::vector<int>& ranks : holders_) std::sort(ranks.begin(), ranks.end());
}

int64_t SliceSources::replica_for(int owner) const {
  const int64_t replica = grad_.full_replica_index(owner);
  return replica >= 0 ? replica : owner % std::ssize(holders_);
}

const std::vector<Block>& SliceSources::blocks(const Layout& layout, int rank,
                                               std::map<int64_t, std::vector<Block>>& known) {
  const auto [at, is_new] = known.try_emplace(layout.shard_index(rank));
  if (is_new) at->second = blocks_of(layout, rank);
  return at->second;
}

std::vector<SharedBlock> SliceSources::shared(int owner, int64_t begin, int64_t end, int holder) {
  std::vector<SharedBlock> out;
  if (begin == end) return out;
  const std::vector<Block>& theirs = blocks(grad_, holder, of_grad_);
  std::vector<Block> mine;
  for (const Block& block : blocks(param_, owner, of_param_)) add_slice(block, begin, end, mine);
  for (const Block& p : mine) {
    for (const Block& g : theirs) {
      const int64_t row = std::max(p.row, g.row), col = std::max(p.col, g.col);
      const int64_t rows = std::min(p.row + p.rows, g.row + g.rows) - row;
      const int64_t cols = std::min(p.col + p.cols, g.col + g.cols) - col;
      if (rows <= 0 || cols <= 0) continue;
      out.push_back({rows, cols, g.local_offset + (row - g.row) * g.local_ld + col - g.col,
                     g.local_ld, p.local_offset + (row - p.row) * p.local_ld + col - p.col,
                     p.local_ld});
    }
  }
  return out;
}

}  // namespace muonrt
