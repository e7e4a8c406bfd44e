#include "plan/callback_chunks.hpp"

#include <map>

namespace muonrt {

namespace {

/// Calls `use` for each contiguous part of `block`: the whole block if it is contiguous in its
/// buffer, and otherwise each row.
template <class Use>
void for_each_contiguous(const Block& block, const Use& use) {
  if (block.rows == 1 || block.local_ld == block.cols) return use(block);
  for (int64_t i = 0; i < block.rows; ++i) {
    use(Block{block.row + i, block.col, 1, block.cols, block.local_offset + i * block.local_ld,
              block.cols});
  }
}

const ParamSpec& spec_of(const Plan& plan, int32_t param) {
  return plan.problem().params[static_cast<size_t>(param)];
}

int64_t buffer_bytes(const Plan& plan, int64_t numel) {
  const int64_t bytes = checked_mul(numel, size_of(plan.problem().options.transport_dtype));
  return round_up(bytes, kMessageAlignment);
}

/// Returns the blocks of matrix `id` in the owner's row-major buffer. `index` is the position in
/// this buffer of the expert that contains the matrix.
std::vector<Block> whole_blocks(const ExchangeContext& context, int32_t id, int64_t index) {
  const Matrix& m = context.matrix(id);
  const ParamSpec& spec = spec_of(context.plan, m.param);
  const auto& shape = spec.layout.shape();
  const int64_t rows = shape[shape.size() - 2], cols = shape.back();
  const Block whole{0, 0, rows, cols, index * rows * cols, cols};
  if (spec.parts.empty()) return {whole};
  const MatrixPart& part =
      spec.parts[static_cast<size_t>(m.index) % static_cast<size_t>(parts_of(spec))];
  return blocks_of_part({whole}, part.rows, part.cols);
}

/// Adds the blocks of the rank's shard of matrix `id`.
/// @param first  the index of the shard's first element in the message buffer.
void add_state_shards(const ExchangeContext& context, int rank, int32_t id, int64_t first,
                      std::vector<ShardBlock>& blocks) {
  const Matrix& m = context.matrix(id);
  const Holder* holder = context.holders.group(m.param, m.index).find(rank);
  if (!holder) return;
  for (const Block& block : context.blocks_of(id, *holder)) {
    for_each_contiguous(block, [&](const Block& b) {
      blocks.push_back(context.shard_block(id, b, first + b.local_offset));
    });
  }
}

/// Adds the matrices of one owner, which are stored without gaps from element `first` of the
/// owner's buffer.
void add_whole_matrices(const ExchangeContext& context, const std::vector<int32_t>& ids,
                        const std::map<int32_t, int32_t>& index_of, int64_t first,
                        std::vector<MatrixBlock>& blocks) {
  // The index of the current expert in the stack, and its position in the buffer.
  int64_t expert = -1, index = -1;
  for (const int32_t id : ids) {
    const Matrix& m = context.matrix(id);
    const int64_t of = m.index / parts_of(context.spec(m));
    if (of != expert) ++index;
    expert = of;
    for (const Block& block : whole_blocks(context, id, index)) {
      for_each_contiguous(block, [&](const Block& b) {
        blocks.push_back({index_of.at(id), b.rows, b.cols, b.row, b.col, first + b.local_offset});
      });
    }
  }
}

}  // namespace

void for_each_callback_owner(
    const Plan& plan, const ChunkSpec& chunk,
    FunctionRef<void(int32_t param, int32_t owner, const std::vector<int32_t>& ids)> use) {
  std::map<std::pair<int32_t, int32_t>, std::vector<int32_t>> ids;  // keys are (parameter, owner)
  for (const int32_t id : chunk.matrices) {
    const Matrix& m = plan.matrices()[static_cast<size_t>(id)];
    ids[{m.param, m.owner}].push_back(id);
  }
  for (const auto& [key, matrices] : ids) use(key.first, key.second, matrices);
}

void add_callback_chunk(const ExchangeContext& context, int rank, const ChunkSpec& of,
                        RankChunk& chunk) {
  const int64_t size = size_of(context.plan.problem().options.transport_dtype);
  std::vector<int32_t> own;
  for (const int32_t id : of.matrices)
    if (context.matrix(id).owner == rank) own.push_back(id);
  const std::map<int32_t, int32_t> index_of = add_owned(context, own, chunk);
  int64_t local = 0, full = 0;  // bytes used in the holder's and in the owner's buffer
  for_each_callback_owner(
      context.plan, of, [&](int32_t param, int32_t owner, const std::vector<int32_t>& ids) {
        const bool next = chunk.callbacks.empty() || chunk.callbacks.back().param != param;
        if (next && !chunk.callbacks.empty()) local += chunk.callbacks.back().local_bytes;
        chunk.callbacks.push_back(
            {param, owner, local, callback_local_bytes(context.plan, param, rank), full});
        for (const int32_t id : ids)
          add_state_shards(context, rank, id, local / size, chunk.gather_blocks);
        if (owner != rank) return;
        add_whole_matrices(context, ids, index_of, full / size, chunk.gather_matrix_blocks);
        full += chunk.callbacks.back().full_bytes = callback_owner_bytes(context.plan, ids);
      });
  chunk.return_blocks = chunk.gather_blocks;
  chunk.return_matrix_blocks = chunk.gather_matrix_blocks;
  chunk.gather_send_bytes = chunk.return_receive_bytes = local + chunk.callbacks.back().local_bytes;
  chunk.gather_receive_bytes = chunk.return_send_bytes = full;
}

int64_t callback_local_bytes(const Plan& plan, int32_t param, int rank) {
  return buffer_bytes(plan, spec_of(plan, param).layout.local_numel(rank));
}

int64_t callback_owner_bytes(const Plan& plan, const std::vector<int32_t>& ids) {
  int64_t numel = 0;
  for (const int32_t id : ids) {
    const Matrix& m = plan.matrices()[static_cast<size_t>(id)];
    numel += m.rows * m.cols;
  }
  return buffer_bytes(plan, numel);
}

}  // namespace muonrt
