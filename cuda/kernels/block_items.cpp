#include "cuda/kernels/block_items.hpp"

#include "base/error.hpp"

namespace muonrt::cuda {

namespace {

void check_stored(const MatrixBatch& matrix, const OwnedMatrix& owned) {
  MUONRT_CHECK_INTERNAL(
      matrix.rows == owned.short_side() && matrix.cols == owned.long_side() && matrix.count == 1,
      "a whole matrix of ", owned.rows, " x ", owned.cols, " stored as ", matrix.count, " of ",
      matrix.rows, " x ", matrix.cols);
}

}  // namespace

ItemList<ShardBlockItem> items_of(std::span<const ShardBlock> blocks) {
  ItemList<ShardBlockItem> out;
  out.items.reserve(blocks.size());
  for (const ShardBlock& p : blocks) {
    const auto item = static_cast<int32_t>(out.items.size());
    out.items.push_back({p.local_offset, p.local_ld, p.packed_offset, p.cols, p.param,
                         p.update_scale, p.decay_scale, p.tensor_index, p.tensor_ld});
    if (p.cols == p.local_ld) {
      cut_rows(item, 1, p.rows * p.cols, out.jobs);
    } else {
      cut_rows(item, p.rows, p.cols, out.jobs);
    }
  }
  return out;
}

ItemList<MatrixItem> items_of(std::span<const MatrixBlock> blocks,
                              std::span<const OwnedMatrix> owned, const MatrixBatch* matrices) {
  ItemList<MatrixItem> out;
  out.items.reserve(blocks.size());
  for (const MatrixBlock& p : blocks) {
    const OwnedMatrix& whole = owned[static_cast<size_t>(p.matrix)];
    const MatrixBatch& m = matrices[p.matrix];
    check_stored(m, whole);
    const auto item = static_cast<int32_t>(out.items.size());
    const int64_t offset = whole.transposed() ? p.col * m.ld + p.row : p.row * m.ld + p.col;
    out.items.push_back(
        {m.data, offset, m.ld, p.packed_offset, p.cols, m.dtype, whole.transposed()});
    if (whole.transposed()) {
      cut_tiles(item, p.rows, p.cols, out.jobs);
    } else if (p.cols == m.ld) {
      cut_rows(item, 1, p.rows * p.cols, out.jobs);
    } else {
      cut_rows(item, p.rows, p.cols, out.jobs);
    }
  }
  return out;
}

}  // namespace muonrt::cuda
