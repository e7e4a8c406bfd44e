#include "layout/blocks.hpp"

#include <algorithm>

#include "base/error.hpp"

namespace muonrt {

namespace {

/// One matrix of a rank: the rows and columns that the rank holds, and the offset of the first held
/// element in the local buffer. If the rank's flat range begins inside the matrix, the offset is
/// negative.
struct LocalMatrix {
  Runs rows, cols;
  int64_t width;  // length(cols)
  int64_t base;
};

/// Adds the blocks of the local rows [r0, r1) and local columns [c0, c1) to `out`.
void add_local_block(const LocalMatrix& m, int64_t r0, int64_t r1, int64_t c0, int64_t c1,
                     std::vector<Block>& out) {
  if (r0 >= r1 || c0 >= c1) return;
  const Runs rows = slice(m.rows, r0, r1), cols = slice(m.cols, c0, c1);
  int64_t at_row = r0;
  for (const Run& r : rows) {
    int64_t at_col = c0;
    for (const Run& c : cols) {
      const int64_t n_rows = r.end - r.begin, n_cols = c.end - c.begin;
      out.push_back({r.begin, c.begin, n_rows, n_cols, m.base + at_row * m.width + at_col,
                     n_rows == 1 ? n_cols : m.width});
      at_col += n_cols;
    }
    at_row += r.end - r.begin;
  }
}

/// Returns the blocks that form elements [begin, end) of the row-major local matrix: the last part
/// of a row, whole rows, and the first part of a row. Any of them may be missing.
std::vector<Block> blocks_in(const LocalMatrix& m, int64_t begin, int64_t end) {
  std::vector<Block> out;
  if (begin >= end) return out;
  const int64_t r0 = begin / m.width, c0 = begin % m.width;
  const int64_t r1 = end / m.width, c1 = end % m.width;
  if (r0 == r1) {
    add_local_block(m, r0, r0 + 1, c0, c1, out);
    return out;
  }
  if (c0 > 0) add_local_block(m, r0, r0 + 1, c0, m.width, out);
  add_local_block(m, r0 + (c0 > 0), r1, 0, m.width, out);
  add_local_block(m, r1, r1 + 1, 0, c1, out);
  return out;
}

}  // namespace

std::pair<int64_t, int64_t> matrix_shape(const Layout& layout) {
  const std::vector<int64_t>& shape = layout.shape();
  MUONRT_REQUIRE(shape.size() <= 2, Status::kInvalidArgument, "layout of shape ", shape,
                 " is not a matrix; declare it a stack of matrices (3-D) or view it as n_0 x rest");
  if (shape.empty()) return {1, 1};
  if (shape.size() == 1) return {1, shape[0]};
  return {shape[0], shape[1]};
}

std::vector<Block> blocks_of(const Layout& layout, int rank) {
  (void)matrix_shape(layout);
  const auto [begin, end] = layout.flat_range(rank);
  if (begin >= end) return {};
  const int dims = layout.dims();
  LocalMatrix m{dims == 2 ? layout.runs_before_flat(rank, 0) : whole(1),
                dims == 0 ? whole(1) : layout.runs_before_flat(rank, dims - 1), 0, -begin};
  m.width = length(m.cols);
  return blocks_in(m, begin, end);
}

std::vector<Block> blocks_of_matrix(const Layout& stack, int rank, int64_t e) {
  const std::vector<int64_t>& shape = stack.shape();
  MUONRT_REQUIRE(shape.size() == 3, Status::kInvalidArgument, "layout of shape ", shape,
                 " is not a stack of matrices; use (count, rows, cols)");
  MUONRT_REQUIRE(e >= 0 && e < shape[0], Status::kInvalidArgument, "stack of shape ", shape,
                 " has no matrix ", e, "; give 0 to ", shape[0] - 1);
  const auto [begin, end] = stack.flat_range(rank);
  if (begin >= end) return {};
  const int64_t index = position_of(stack.runs_before_flat(rank, 0), e);
  if (index < 0) return {};
  LocalMatrix m{stack.runs_before_flat(rank, 1), stack.runs_before_flat(rank, 2), 0, 0};
  m.width = length(m.cols);
  const int64_t numel = length(m.rows) * m.width, first = index * numel;
  m.base = first - begin;
  return blocks_in(m, std::max(begin - first, int64_t{0}), std::min(end - first, numel));
}

std::vector<Block> blocks_of_part(const std::vector<Block>& blocks, const Runs& rows,
                                  const Runs& cols) {
  struct Overlap {
    int64_t at, begin, end;  // position in the list of the part, and the range of matrix indices
  };
  const auto overlaps = [](const Runs& list, int64_t begin, int64_t end) {
    std::vector<Overlap> out;
    int64_t passed = 0;
    for (const Run& run : list) {
      if (run.begin >= end) break;
      const int64_t b = std::max(begin, run.begin), e = std::min(end, run.end);
      if (b < e) out.push_back({passed + b - run.begin, b, e});
      passed += run.end - run.begin;
    }
    return out;
  };
  std::vector<Block> out;
  for (const Block& block : blocks) {
    const std::vector<Overlap> across = overlaps(cols, block.col, block.col + block.cols);
    if (across.empty()) continue;
    for (const Overlap& r : overlaps(rows, block.row, block.row + block.rows)) {
      for (const Overlap& c : across) {
        const int64_t n_rows = r.end - r.begin, n_cols = c.end - c.begin;
        out.push_back(
            {r.at, c.at, n_rows, n_cols,
             block.local_offset + (r.begin - block.row) * block.local_ld + c.begin - block.col,
             n_rows == 1 ? n_cols : block.local_ld});
      }
    }
  }
  std::sort(out.begin(), out.end(),
            [](const Block& a, const Block& b) { return a.local_offset < b.local_offset; });
  return out;
}

}  // namespace muonrt
