#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "cuda/kernels/block_items.hpp"

namespace muonrt::cuda {

// The lists of an op, with the values that were copied to the device. Lists are compared field by
// field, because padding bytes are undefined.

inline bool same(const ShardBlock& a, const ShardBlock& b) {
  return a.param == b.param && a.matrix == b.matrix && a.rows == b.rows && a.cols == b.cols &&
         a.local_offset == b.local_offset && a.local_ld == b.local_ld &&
         a.packed_offset == b.packed_offset && a.update_scale == b.update_scale &&
         a.decay_scale == b.decay_scale && a.tensor_index == b.tensor_index &&
         a.tensor_ld == b.tensor_ld;
}
inline bool same(const MatrixBlock& a, const MatrixBlock& b) {
  return a.matrix == b.matrix && a.rows == b.rows && a.cols == b.cols && a.row == b.row &&
         a.col == b.col && a.packed_offset == b.packed_offset;
}
inline bool same(const OwnedMatrix& a, const OwnedMatrix& b) {
  return a.rows == b.rows && a.cols == b.cols && a.transposed() == b.transposed();
}
inline bool same(const MatrixBatch& a, const MatrixBatch& b) {
  return a.data == b.data && a.dtype == b.dtype && a.rows == b.rows && a.cols == b.cols &&
         a.ld == b.ld && a.count == b.count;
}
inline bool same(int32_t a, int32_t b) { return a == b; }

template <class T>
bool same_list(const std::vector<T>& mine, std::span<const T> given) {
  return std::equal(mine.begin(), mine.end(), given.begin(), given.end(),
                    [](const T& a, const T& b) { return same(a, b); });
}

class ShardBlockSource {
 public:
  using Item = ShardBlockItem;
  explicit ShardBlockSource(std::span<const ShardBlock> blocks)
      : blocks_(blocks.begin(), blocks.end()) {}
  bool is(std::span<const ShardBlock> blocks) const { return same_list(blocks_, blocks); }
  ItemList<Item> lists() const { return items_of(blocks_); }

 private:
  std::vector<ShardBlock> blocks_;
};

/// MatrixBlock lists, one for each OwnedMatrix, together with these matrices.
class MatrixBlockSource {
 public:
  using Item = MatrixItem;
  MatrixBlockSource(std::span<const MatrixBlock> blocks, std::span<const OwnedMatrix> owned,
                    const MatrixBatch* matrices)
      : blocks_(blocks.begin(), blocks.end()),
        owned_(owned.begin(), owned.end()),
        matrices_(matrices, matrices + owned.size()) {}
  bool is(std::span<const MatrixBlock> blocks, std::span<const OwnedMatrix> owned,
          const MatrixBatch* matrices) const {
    return same_list(blocks_, blocks) && same_list(owned_, owned) &&
           same_list(matrices_, std::span(matrices, owned.size()));
  }
  ItemList<Item> lists() const { return items_of(blocks_, owned_, matrices_.data()); }

 private:
  std::vector<MatrixBlock> blocks_;
  std::vector<OwnedMatrix> owned_;
  std::vector<MatrixBatch> matrices_;
};

/// Indices of parameters. The device reads the sizes of the parameters.
class ParamSource {
 public:
  using Item = int32_t;
  explicit ParamSource(std::span<const int32_t> list) : list_(list.begin(), list.end()) {}
  bool is(std::span<const int32_t> list) const { return same_list(list_, list); }
  ItemList<Item> lists() const { return {list_, {}}; }

 private:
  std::vector<int32_t> list_;
};

}  // namespace muonrt::cuda
