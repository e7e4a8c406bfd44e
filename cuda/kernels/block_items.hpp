#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "backend/ops.hpp"
#include "cuda/kernels/jobs.hpp"
#include "plan/rank_chunk.hpp"

// Lists of blocks to copy, in the form that kernels read. This is plain C++ that is tested on the
// host.

namespace muonrt::cuda {

/// A ShardBlock. Element (row, col) is stored at offset + row * ld + col. A block that is
/// contiguous in the local buffer becomes one long row.
struct ShardBlockItem {
  int64_t local_offset, local_ld;    // position in the parameter, its gradient and its state
  int64_t packed_offset, packed_ld;  // position in the message
  int32_t param;
  float update_scale, decay_scale;
  int64_t tensor_index, tensor_ld;  // position in the whole tensor
};

/// A MatrixBlock and the matrix that it belongs to.
struct MatrixItem {
  void* data;  // address of the stored matrix
  int64_t offset, ld;
  int64_t packed_offset, packed_ld;
  DType dtype;
  /// If 1, element (row, col) of the message is stored at offset + col * ld + row. If 0, it is
  /// stored at offset + row * ld + col.
  int32_t transposed;
};

template <class Item>
struct ItemList {
  std::vector<Item> items;
  std::vector<Job> jobs;
};

ItemList<ShardBlockItem> items_of(std::span<const ShardBlock> blocks);

/// Errors: INTERNAL if a matrix is not stored with its short side first.
ItemList<MatrixItem> items_of(std::span<const MatrixBlock> blocks,
                              std::span<const OwnedMatrix> owned, const MatrixBatch* matrices);

}  // namespace muonrt::cuda
