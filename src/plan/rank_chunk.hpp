#pragma once

#include <cstdint>
#include <vector>

#include "base/dtype.hpp"

namespace muonrt {

/// A block of rows x cols elements that is copied between the local buffer of a rank and a message.
/// The block is contiguous in the message. Offsets and leading dimensions are in elements. The
/// gather copies the block to the message, and the commit uses the same list to copy it back.
struct ShardBlock {
  int32_t param;   // index into the optimizer's parameters
  int32_t matrix;  // index into Plan::matrices()
  int64_t rows, cols;
  int64_t local_offset, local_ld;
  int64_t packed_offset;           // in elements from the start of the chunk's message buffer
  int64_t global_row, global_col;  // position in the whole matrix or part
  float update_scale;              // ParamSpec::update_scale, or the scale of the part
  float decay_scale = 1.0f;        // factor for the group's weight decay
  /// The row-major index of the block's first element in the whole tensor, and the distance between
  /// two rows of the block there.
  int64_t tensor_index = 0, tensor_ld = 0;
};

/// A block of rows x cols elements that is copied between a message and a whole matrix of the
/// owner.
struct MatrixBlock {
  int32_t matrix;  // index into RankChunk::owned
  int64_t rows, cols;
  int64_t row, col;  // position in the whole matrix, which is not transposed
  int64_t packed_offset;
};

/// Each message starts at a multiple of this number of bytes in its buffer.
constexpr int64_t kMessageAlignment = 64;

/// Contiguous bytes of a message buffer to or from one peer. The rank itself may be the peer.
struct Region {
  int32_t peer;
  int64_t offset, bytes;
};

/// A matrix that this rank owns and orthogonalizes in a chunk.
struct OwnedMatrix {
  int32_t matrix;             // index into Plan::matrices()
  int64_t rows, cols;         // size of the whole matrix
  bool inputs_first = false;  // true if rows are inputs
  /// Returns true if the matrix is stored transposed: the shorter side comes first, and outputs
  /// come first if both sides are equal.
  bool transposed() const { return rows > cols || (rows == cols && inputs_first); }
  int64_t short_side() const { return rows < cols ? rows : cols; }
  int64_t long_side() const { return rows < cols ? cols : rows; }
};

/// The content of a chunk. Each chunk has one kind.
enum class ChunkKind : int32_t {
  kDirections = 0,    // directions of matrices; the holders compute them and store the momentum
  kPartialGrads = 1,  // gradients of matrices; the owner sums them and stores the momentum
  kSlices = 2         // AdamW: owners of slices receive partial gradients and return new values
};

/// A whole matrix, or a slice of an AdamW parameter, whose state this rank stores for all holders.
/// The elementwise ops treat it as a parameter; in their table, its entry follows those of all
/// parameters.
struct OwnerState {
  int32_t param;       // index into the optimizer's parameters
  int64_t first;       // index into Plan::matrices(); for a slice, the first local element
  int64_t numel;       // number of elements
  int64_t sum_offset;  // offset of its sum in the sums of the chunk, in f32 elements
};

/// The arguments of the caller's functions for those matrices of one parameter that one rank owns.
/// Each function is called once for all of these matrices. The buffers have the transport dtype.
struct CallbackTransfer {
  int32_t param, owner;
  int64_t local_offset, local_bytes;  // this rank's shard in the holder's buffers
  /// The place of the matrices in the owner's buffers. full_bytes is 0 on other ranks.
  int64_t full_offset, full_bytes = 0;
};

/// Everything that one rank does for one chunk.
struct RankChunk {
  int32_t index = 0;  // chunk index
  // The calls of the caller's functions. A chunk with such calls has no messages: its buffers
  // contain local shards and whole matrices.
  std::vector<CallbackTransfer> callbacks;
  int32_t update_every = 1;  // ChunkSpec::update_every
  ChunkKind kind = ChunkKind::kDirections;
  DType gather_dtype = DType::kBF16, return_dtype = DType::kBF16;  // dtypes of the messages
  // Gather: local --pack--> send buffer --exchange--> receive buffer --unpack--> matrices
  std::vector<ShardBlock> gather_blocks;
  std::vector<Region> gather_sends, gather_receives;
  std::vector<MatrixBlock> gather_matrix_blocks;
  std::vector<OwnedMatrix> owned;  // matrices of equal shape and method are adjacent
  // Return: matrices --pack--> send buffer --exchange--> receive buffer --commit--> local
  // If the kind is kDirections, return_matrix_blocks begins with gather_matrix_blocks. Sends to
  // several replicas may use the same region.
  std::vector<MatrixBlock> return_matrix_blocks;
  std::vector<Region> return_sends, return_receives;
  std::vector<ShardBlock> return_blocks;
  // The second level of the return, which takes place inside the receive buffer. This rank forwards
  // the messages of the owners to the ranks that hold the same shard in other replicas, and
  // receives the messages that those ranks forward.
  std::vector<Region> relay_sends, relay_receives;
  int64_t gather_send_bytes = 0, gather_receive_bytes = 0;
  int64_t return_send_bytes = 0, return_receive_bytes = 0;
  // Partial gradients: receive buffer --accumulate--> sums, one list of blocks after the other;
  // sums --direction--> a buffer of `direction_bytes`, which gather_matrix_blocks then unpacks. In
  // partial_grad_blocks, `local_offset` is an offset in the sums.
  std::vector<std::vector<ShardBlock>> partial_grad_blocks;
  std::vector<OwnerState> owner_state;
  std::vector<int32_t> owner_state_views;  // entry i is the table index of owner_state[i]
  // The entries have the order of owner_state, and their `param` is a table index.
  std::vector<ShardBlock> owner_state_blocks;
  int64_t sum_bytes = 0, direction_bytes = 0;
  bool takes_part() const {
    return !gather_sends.empty() || !gather_receives.empty() || !return_sends.empty() ||
           !return_receives.empty() || !relay_receives.empty();
  }
};

}  // namespace muonrt
