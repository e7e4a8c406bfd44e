#include "plan/exchange.hpp"

namespace muonrt {

namespace {

/// Converts a row of a part to a row of the matrix. `rows` are the rows of the part.
int64_t row_of_matrix(const Runs& rows, int64_t row) {
  for (const Run& run : rows) {
    if (row < run.end - run.begin) return run.begin + row;
    row -= run.end - run.begin;
  }
  return row;
}

/// Returns the row-major index that element (row, col) of a matrix or part has in the whole tensor.
int64_t index_in_tensor(const ParamSpec& spec, int64_t matrix, int64_t row, int64_t col) {
  const auto& shape = spec.layout.shape();
  const int64_t rows = shape[shape.size() - 2], cols = shape.back(), parts = parts_of(spec);
  if (!spec.parts.empty()) {
    const MatrixPart& part = spec.parts[static_cast<size_t>(matrix % parts)];
    row = row_of_matrix(part.rows, row);
    col = row_of_matrix(part.cols, col);
  }
  return (matrix / parts * rows + row) * cols + col;
}

/// Adds the blocks of a message to `shard_blocks`. The gather uses this list to pack, and the
/// commit uses it to unpack. In a gather, the blocks are those of the gradient's layout.
Region add_message(const ExchangeContext& context, const MessageEntry* first,
                   const MessageEntry* last, int32_t peer, MessageCursor& cursor,
                   std::vector<ShardBlock>& shard_blocks) {
  cursor.begin_message();
  for (; first != last; ++first) {
    const auto& blocks = first->exchange == Exchange::kGather
                             ? context.grad_blocks_of(first->matrix, first->holder)
                             : context.blocks_of(first->matrix, first->holder);
    for (const Block& b : blocks)
      shard_blocks.push_back(context.shard_block(first->matrix, b, cursor.take(b.numel())));
  }
  return cursor.region(peer);
}

}  // namespace

ShardBlock ExchangeContext::shard_block(int32_t id, const Block& b, int64_t packed_offset) const {
  const Matrix& m = matrix(id);
  const ParamSpec& spec = this->spec(m);
  const auto parts = static_cast<size_t>(parts_of(spec));
  const MatrixPart* part =
      spec.parts.empty() ? nullptr : &spec.parts[static_cast<size_t>(m.index) % parts];
  ShardBlock out{m.param,       id,    b.rows, b.cols, b.local_offset, b.local_ld,
                 packed_offset, b.row, b.col,  0};
  out.update_scale = static_cast<float>(part ? part->update_scale : spec.update_scale);
  out.decay_scale = static_cast<float>(part ? part->decay_scale : spec.decay_scale);
  out.tensor_index = index_in_tensor(spec, m.index, b.row, b.col);
  out.tensor_ld = spec.layout.shape().back();
  return out;
}

void add_holder_side(const ExchangeContext& context, const RankMessages& messages,
                     const ChunkSpec& of, int32_t rank, RankChunk& chunk) {
  MessageCursor sends(size_of(chunk.gather_dtype)), receives(size_of(chunk.return_dtype));
  for_each_message(messages.gather_sends, [&](const MessageEntry* first, const MessageEntry* last) {
    chunk.gather_sends.push_back(
        add_message(context, first, last, first->to, sends, chunk.gather_blocks));
  });
  chunk.gather_send_bytes = sends.total();
  for_each_message(
      messages.return_receives, [&](const MessageEntry* first, const MessageEntry* last) {
        chunk.return_receives.push_back(
            add_message(context, first, last, first->from, receives, chunk.return_blocks));
      });
  if (of.relay > 0) add_relay_sends(front_layout(context.plan, of), rank, of.relay, chunk);
  // Forwarded messages are stored after the messages of the owners, in the order of the ranks that
  // forward them.
  for_each_message(
      messages.relay_receives, [&](const MessageEntry* first, const MessageEntry* last) {
        add_relayed(add_message(context, first, last, first->from, receives, chunk.return_blocks),
                    chunk.relay_receives);
      });
  chunk.return_receive_bytes = receives.total();
}

void add_relay_sends(const Layout& layout, int32_t rank, int32_t block, RankChunk& chunk) {
  if (chunk.return_receives.empty()) return;
  const Region& last = chunk.return_receives.back();
  for (const int32_t to : forwards_to(layout, rank, block))
    chunk.relay_sends.push_back({to, 0, last.offset + last.bytes});
}

void add_relayed(const Region& message, std::vector<Region>& regions) {
  if (regions.empty() || regions.back().peer != message.peer) return regions.push_back(message);
  regions.back().bytes = message.offset + message.bytes - regions.back().offset;
}

}  // namespace muonrt
