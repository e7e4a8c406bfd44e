#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.hpp"

namespace muonrt {

/// One rectangle between a rank's local buffer and a message. Offsets and ld in elements; inside
/// the message the rectangle is contiguous, rows x cols. The gather reads local -> message, the
/// commit reads message -> local with the very same list.
struct ShardBlock {
  int32_t param;   // index into the optimizer's parameters
  int32_t matrix;  // index into Plan::matrices()
  int64_t rows, cols;
  int64_t local_offset, local_ld;
  int64_t packed_offset;  // from the start of the slot's message buffer, transport dtype elements
  int64_t global_row, global_col;  // in the matrix, or in the part that it is
  float update_scale;              // of the matrix's shape, times the factors on the rate
  float decay_scale = 1.0f;        // multiplies the group's decay
  /// Of the first element in the whole tensor, row-major, and from row to row there.
  int64_t tensor_index = 0, tensor_ld = 0;
};

/// The owner's side: one rectangle between a message and the whole matrix.
struct MatrixBlock {
  int32_t matrix;  // index into RankChunk::owned
  int64_t rows, cols;
  int64_t row, col;  // place in the whole matrix (never transposed)
  int64_t packed_offset;
};

/// Contiguous bytes of a message buffer to or from one peer. The rank itself may be the peer.
struct Region {
  int32_t peer;
  int64_t offset, bytes;
};

/// A matrix that this rank orthogonalizes in a slot.
struct OwnedMatrix {
  int32_t matrix;             // index into Plan::matrices()
  int64_t rows, cols;         // of the whole matrix
  bool inputs_first = false;  // its rows are inputs
  /// It is stored short side first, a square one outputs first.
  bool transposed() const { return rows > cols || (rows == cols && inputs_first); }
  int64_t short_side() const { return rows < cols ? rows : cols; }
  int64_t long_side() const { return rows < cols ? cols : rows; }
};

/// What travels in a slot; all of a slot is of one kind.
enum class ChunkKind : int32_t {
  kDirections = 0,    // of matrices, formed by the holders, who keep the momentum
  kPartialGrads = 1,  // of matrices: gradients that the owner sums; it keeps the momentum
  kSlices = 2         // AdamW: addends of slices there, new values of the parameters back
};

/// What a rank keeps the state of on behalf of all holders: a whole matrix, or its slice of an
/// AdamW parameter. The elementwise ops see it as a parameter, in the table behind all others.
struct OwnerState {
  int32_t param;       // index into the optimizer's parameters
  int64_t first;       // matrix: index into Plan::matrices(); slice: first local element
  int64_t numel;       // elements
  int64_t sum_offset;  // of its sum in the slot's sums, f32 elements
};

/// Everything one rank does for one chunk slot.
struct RankChunk {
  int32_t index = 0;  // number in the world's sequence
  // Parameter that the caller's functions carry, or -1. Its slot has no messages: a send or receive
  // buffer is the local shard, or the whole tensor.
  int32_t callback_param = -1;
  ChunkKind kind = ChunkKind::kDirections;
  DType gather_dtype = DType::kBF16, return_dtype = DType::kBF16;  // of the messages
  // gather: local --pack--> send buffer --exchange--> receive buffer --unpack--> matrices
  std::vector<ShardBlock> gather_blocks;
  std::vector<Region> gather_sends, gather_receives;
  std::vector<MatrixBlock> gather_matrix_blocks;
  std::vector<OwnedMatrix> owned;  // equal shapes and methods adjacent
  // return: matrices --pack--> send buffer --exchange--> receive buffer --commit--> local
  std::vector<MatrixBlock> return_matrix_blocks;  // directions: begins with gather_matrix_blocks
  std::vector<Region> return_sends, return_receives;  // sends to replicas may share a region
  std::vector<ShardBlock> return_blocks;
  // Second level of the return, inside the receive buffer: what owners sent here goes on to the
  // equal holders of other replicas, and what theirs got comes from them.
  std::vector<Region> relay_sends, relay_receives;
  int64_t gather_send_bytes = 0, gather_receive_bytes = 0;
  int64_t return_send_bytes = 0, return_receive_bytes = 0;
  // Addends, between the receive buffer and the matrices: receive buffer --accumulate--> sums, each
  // list once, in order; sums --direction--> `direction_bytes`, which gather_matrix_blocks then
  // unpacks.
  std::vector<std::vector<ShardBlock>> partial_grad_blocks;  // local: place in the sums
  std::vector<OwnerState> owner_state;
  std::vector<int32_t> owner_state_views;      // the place of each of `owner_state` in the table
  std::vector<ShardBlock> owner_state_blocks;  // rectangles of them, in order; param: such a place
  int64_t sum_bytes = 0, direction_bytes = 0;
  bool takes_part() const {
    return !gather_sends.empty() || !gather_receives.empty() || !return_sends.empty() ||
           !return_receives.empty() || !relay_receives.empty();
  }
};

}  // namespace muonrt
