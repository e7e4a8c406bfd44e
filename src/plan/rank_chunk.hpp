#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.hpp"

namespace muonrt {

/// A block between the local buffer of a rank and a message, where it is contiguous, rows x cols.
/// Offsets and leading dimensions are in elements. The gather copies it to the message; the commit
/// uses the same list from the message to the local buffer.
struct ShardBlock {
  int32_t param;   // index into the optimizer's parameters
  int32_t matrix;  // index into Plan::matrices()
  int64_t rows, cols;
  int64_t local_offset, local_ld;
  int64_t packed_offset;           // elements from the start of the chunk's message buffer
  int64_t global_row, global_col;  // in the whole matrix (or part)
  float update_scale;              // ParamSpec::update_scale, or that of the part
  float decay_scale = 1.0f;        // multiplies the group's decay
  /// Index of the first element in the whole tensor, row-major, and the distance between rows.
  int64_t tensor_index = 0, tensor_ld = 0;
};

/// A block between a message and a whole matrix of the owner.
struct MatrixBlock {
  int32_t matrix;  // index into RankChunk::owned
  int64_t rows, cols;
  int64_t row, col;  // in the whole matrix, not transposed
  int64_t packed_offset;
};

/// Each message starts at a multiple of this many bytes in its buffer.
constexpr int64_t kMessageAlignment = 64;

/// Contiguous bytes of a message buffer to or from one peer. The rank itself may be the peer.
struct Region {
  int32_t peer;
  int64_t offset, bytes;
};

/// A matrix that this rank orthogonalizes in a chunk.
struct OwnedMatrix {
  int32_t matrix;             // index into Plan::matrices()
  int64_t rows, cols;         // of the whole matrix
  bool inputs_first = false;  // the rows are inputs
  /// True if it is stored transposed: the short side comes first, in a square matrix the outputs.
  bool transposed() const { return rows > cols || (rows == cols && inputs_first); }
  int64_t short_side() const { return rows < cols ? rows : cols; }
  int64_t long_side() const { return rows < cols ? cols : rows; }
};

/// The content of a chunk; a chunk has one kind.
enum class ChunkKind : int32_t {
  kDirections = 0,    // directions of matrices; the holders form them and keep the momentum
  kPartialGrads = 1,  // gradients of matrices; the owner sums them and keeps the momentum
  kSlices = 2         // AdamW: partial gradients of slices to the owners, new values back
};

/// A whole matrix, or a slice of an AdamW parameter, whose state this rank keeps for all holders.
/// The elementwise ops treat it as a parameter; its table entry follows those of all parameters.
struct OwnerState {
  int32_t param;       // index into the optimizer's parameters
  int64_t first;       // matrix: index into Plan::matrices(); slice: first local element
  int64_t numel;       // elements
  int64_t sum_offset;  // of its sum in the sums of the chunk, in f32 elements
};

/// A call of each of the caller's functions: the matrices of a parameter that one rank owns. The
/// buffers have the transport dtype.
struct CallbackTransfer {
  int32_t param, owner;
  int64_t local_offset, local_bytes;    // of the rank's shard in the holder's buffers
  int64_t full_offset, full_bytes = 0;  // of the matrices in the owner's; 0 on other ranks
};

/// Everything that one rank does for one chunk.
struct RankChunk {
  int32_t index = 0;  // chunk index
  // The calls of the caller's functions. A chunk that has any has no messages: its buffers hold
  // local shards and whole matrices.
  std::vector<CallbackTransfer> callbacks;
  int32_t update_every = 1;  // ChunkSpec::update_every
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
  // Second level of the return, inside the receive buffer: this rank forwards the messages of
  // owners to the holders of the same shard in other replicas, and receives what these forward.
  std::vector<Region> relay_sends, relay_receives;
  int64_t gather_send_bytes = 0, gather_receive_bytes = 0;
  int64_t return_send_bytes = 0, return_receive_bytes = 0;
  // Partial gradients: receive buffer --accumulate--> sums, one list after the other;
  // sums --direction--> a buffer of `direction_bytes`, which gather_matrix_blocks then unpacks.
  std::vector<std::vector<ShardBlock>> partial_grad_blocks;  // local_offset: in the sums
  std::vector<OwnerState> owner_state;
  std::vector<int32_t> owner_state_views;      // entry i: table index of owner_state[i]
  std::vector<ShardBlock> owner_state_blocks;  // in the order of owner_state; param: table index
  int64_t sum_bytes = 0, direction_bytes = 0;
  bool takes_part() const {
    return !gather_sends.empty() || !gather_receives.empty() || !return_sends.empty() ||
           !return_receives.empty() || !relay_receives.empty();
  }
};

}  // namespace muonrt
