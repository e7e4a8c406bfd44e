#include "plan/callback_chunks.hpp"

#include <map>

namespace muonrt {

namespace {

/// Calls `use` for each part of `block` that is contiguous in its buffer: the whole block, or each
/// of its rows.
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

/// Returns the blocks of the whole tensor that matrix `id` consists of.
std::vector<Block> whole_blocks(const ExchangeContext& context, int32_t id) {
  const Matrix& m = context.matrix(id);
  const ParamSpec& spec = spec_of(context.plan, m.param);
  const auto& shape = spec.layout.shape();
  const int64_t rows = shape[shape.size() - 2], cols = shape.back();
  const Block whole{0, 0, rows, cols, m.index / parts_of(spec) * rows * cols, cols};
  if (spec.parts.empty()) return {whole};
  const MatrixPart& part =
      spec.parts[static_cast<size_t>(m.index) % static_cast<size_t>(parts_of(spec))];
  return blocks_of_part({whole}, part.rows, part.cols);
}

void add_state_shards(const ExchangeContext& context, int rank, int32_t id,
                      std::vector<ShardBlock>& blocks) {
  const Matrix& m = context.matrix(id);
  const Holder* holder = context.holders.group(m.param, m.index).find(rank);
  if (!holder) return;
  for (const Block& block : context.blocks_of(id, *holder)) {
    for_each_contiguous(block, [&](const Block& b) {
      blocks.push_back(context.shard_block(id, b, b.local_offset));
    });
  }
}

}  // namespace

void add_callback_chunk(const ExchangeContext& context, int rank, const std::vector<int32_t>& ids,
                        RankChunk& chunk) {
  const int32_t param = context.matrix(ids.front()).param;
  chunk.callback_param = param;
  for (const int32_t id : ids) add_state_shards(context, rank, id, chunk.gather_blocks);
  chunk.return_blocks = chunk.gather_blocks;
  chunk.gather_send_bytes = chunk.return_receive_bytes =
      callback_local_bytes(context.plan, param, rank);
  if (context.matrix(ids.front()).owner != rank) return;
  const std::map<int32_t, int32_t> index_of = add_owned(context, ids, chunk);
  for (const int32_t id : ids) {
    for (const Block& block : whole_blocks(context, id)) {
      for_each_contiguous(block, [&](const Block& b) {
        chunk.gather_matrix_blocks.push_back(
            {index_of.at(id), b.rows, b.cols, b.row, b.col, b.local_offset});
      });
    }
  }
  chunk.return_matrix_blocks = chunk.gather_matrix_blocks;
  chunk.gather_receive_bytes = chunk.return_send_bytes = callback_full_bytes(context.plan, param);
}

int64_t callback_local_bytes(const Plan& plan, int32_t param, int rank) {
  return buffer_bytes(plan, spec_of(plan, param).layout.local_numel(rank));
}

int64_t callback_full_bytes(const Plan& plan, int32_t param) {
  return buffer_bytes(plan, spec_of(plan, param).layout.numel());
}

}  // namespace muonrt
