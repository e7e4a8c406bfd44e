#include "plan/exchange.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include "plan/batch.hpp"

namespace muonrt {

namespace {

/// Identifies the content of a message by a list of pairs (matrix, shard index). The shards of a
/// layout are disjoint, so two messages contain the same bytes if and only if their lists are
/// equal.
using Content = std::vector<std::pair<int32_t, int32_t>>;

/// Fills the owner's side of one chunk.
class OwnerSide {
 public:
  OwnerSide(const ExchangeContext& context, const RankMessages& messages, RankChunk& chunk)
      : context_(context), chunk_(chunk), cursor_(size_of(chunk.return_dtype)) {
    index_of_ = add_owned(context, messages.owned, chunk);
    if (chunk.kind == ChunkKind::kPartialGrads) {
      add_owner_state();
      add_partial_grads(messages.gather_receives);
    } else {
      add_gather(messages.gather_receives);
    }
    add_return(messages.return_sends);
  }

 private:
  static Content content_of(const MessageEntry* first, const MessageEntry* last) {
    Content out;
    for (; first != last; ++first) out.emplace_back(first->matrix, first->holder.shard);
    return out;
  }

  Region add_message(const MessageEntry* first, const MessageEntry* last, int32_t peer) {
    cursor_.begin_message();
    for (; first != last; ++first) {
      for (const Block& b : context_.blocks_of(first->matrix, first->holder)) {
        chunk_.return_matrix_blocks.push_back(
            {index_of_.at(first->matrix), b.rows, b.cols, b.row, b.col, cursor_.take(b.numel())});
      }
    }
    return cursor_.region(peer);
  }

  void add_gather(const std::vector<MessageEntry>& entries) {
    for_each_message(entries, [&](const MessageEntry* first, const MessageEntry* last) {
      const Region region = add_message(first, last, first->from);
      chunk_.gather_receives.push_back(region);
      messages_.emplace(content_of(first, last), region);
    });
    chunk_.gather_matrix_blocks = chunk_.return_matrix_blocks;
    chunk_.gather_receive_bytes = cursor_.total();
  }

  /// Divides a whole row-major matrix into blocks whose rows and columns are also adjacent in the
  /// tensor. A part of a matrix needs more than one block if its rows or columns consist of
  /// multiple runs.
  std::vector<Block> contiguous_blocks_of(const OwnedMatrix& o) const {
    const Matrix& m = context_.matrix(o.matrix);
    const ParamSpec& spec = context_.spec(m);
    Runs rows = {{0, o.rows}}, cols = {{0, o.cols}};
    if (!spec.parts.empty()) {
      const MatrixPart& part = spec.parts[static_cast<size_t>(m.index % parts_of(spec))];
      rows = part.rows;
      cols = part.cols;
    }
    std::vector<Block> out;
    int64_t row = 0;
    for (const Run& r : rows) {
      int64_t col = 0;
      for (const Run& c : cols) {
        const int64_t width = c.end - c.begin;
        out.push_back({row, col, r.end - r.begin, width, row * o.cols + col, o.cols});
        col += width;
      }
      row += r.end - r.begin;
    }
    return out;
  }

  /// Sums are stored matrix by matrix, in row-major order. Directions are stored block by block, in
  /// the return dtype.
  void add_owner_state() {
    MessageCursor directions(size_of(chunk_.return_dtype));
    int64_t sum = 0;
    for (size_t i = 0; i < chunk_.owned.size(); ++i) {
      const OwnedMatrix& o = chunk_.owned[i];
      const int32_t param = context_.matrix(o.matrix).param;
      directions.begin_message();
      chunk_.owner_state.push_back({param, o.matrix, o.rows * o.cols, sum});
      for (const Block& b : contiguous_blocks_of(o)) {
        const int64_t at = directions.take(b.numel());
        chunk_.owner_state_blocks.push_back(context_.shard_block(o.matrix, b, at));
        chunk_.owner_state_blocks.back().param = static_cast<int32_t>(i);
        chunk_.gather_matrix_blocks.push_back(
            {static_cast<int32_t>(i), b.rows, b.cols, b.row, b.col, at});
      }
      sum = round_up(sum + o.rows * o.cols, kMessageAlignment / 4);
    }
    chunk_.sum_bytes = sum * 4;
    chunk_.direction_bytes = directions.total();
  }

  /// Makes one list of blocks for each term of the sum, in the order of the terms' mesh
  /// coordinates. The sum therefore does not depend on the ranks that hold the terms or on the
  /// order of their arrival.
  void add_partial_grads(const std::vector<MessageEntry>& entries) {
    MessageCursor cursor(size_of(chunk_.gather_dtype));
    for_each_message(entries, [&](const MessageEntry* first, const MessageEntry* last) {
      const int32_t peer = first->from;
      cursor.begin_message();
      for (; first != last; ++first) {
        const int32_t i = index_of_.at(first->matrix);
        const OwnedMatrix& o = chunk_.owned[static_cast<size_t>(i)];
        const OwnerState& owner_state = chunk_.owner_state[static_cast<size_t>(i)];
        const auto partial_grad = static_cast<size_t>(first->holder.partial_index);
        if (chunk_.partial_grad_blocks.size() <= partial_grad)
          chunk_.partial_grad_blocks.resize(partial_grad + 1);
        for (const Block& b : context_.grad_blocks_of(first->matrix, first->holder)) {
          chunk_.partial_grad_blocks[partial_grad].push_back(
              {owner_state.param, first->matrix, b.rows, b.cols,
               owner_state.sum_offset + b.row * o.cols + b.col, o.cols, cursor.take(b.numel()),
               b.row, b.col, 1.0f});
        }
      }
      chunk_.gather_receives.push_back(cursor.region(peer));
    });
    chunk_.gather_receive_bytes = cursor.total();
  }

  /// Adds the messages of the return. The send buffer of the return begins with the messages in the
  /// receive buffer of the gather. If a message to a peer has the same content as one of these, it
  /// uses the same region.
  void add_return(const std::vector<MessageEntry>& entries) {
    for_each_message(entries, [&](const MessageEntry* first, const MessageEntry* last) {
      const auto [at, is_new] = messages_.try_emplace(content_of(first, last));
      if (is_new) at->second = add_message(first, last, first->to);
      chunk_.return_sends.push_back({first->to, at->second.offset, at->second.bytes});
    });
    chunk_.return_send_bytes = cursor_.total();
  }

  const ExchangeContext& context_;
  RankChunk& chunk_;
  MessageCursor cursor_;
  std::map<int32_t, int32_t> index_of_;  // maps a matrix id to its index in chunk_.owned
  std::map<Content, Region> messages_;
};

}  // namespace

std::map<int32_t, int32_t> add_owned(const ExchangeContext& context,
                                     const std::vector<int32_t>& ids, RankChunk& chunk) {
  std::map<int32_t, int32_t> index_of;
  for (const int32_t id : in_batches(context.plan, ids)) {
    index_of[id] = static_cast<int32_t>(chunk.owned.size());
    const Matrix& m = context.matrix(id);
    chunk.owned.push_back({id, m.rows, m.cols, context.spec(m).transposed});
  }
  return index_of;
}

void add_owner_side(const ExchangeContext& context, const RankMessages& messages,
                    RankChunk& chunk) {
  OwnerSide(context, messages, chunk);
}

}  // namespace muonrt
