#include "plan/exchange.hpp"

namespace muonrt {

namespace {

/// One list for both directions: the gather packs it, the commit unpacks it.
int64_t add_pieces(const ExchangeContext& context, const std::vector<Part>& parts,
                   std::vector<Piece>& pieces, std::vector<Region>& regions) {
  MessageCursor cursor(context.element_bytes());
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    if (i == 0 || part.peer != parts[i - 1].peer) cursor.begin_message();
    const int32_t param = context.matrix(part.matrix).param;
    const float scale = context.update_scale(part.matrix);
    for (const Block& b : context.blocks_of(part.matrix, part.place)) {
      pieces.push_back({param, part.matrix, b.rows, b.cols, b.local_offset, b.local_ld,
                        cursor.take(b.numel()), b.row, b.col, scale});
    }
    if (i + 1 == parts.size() || parts[i + 1].peer != part.peer)
      regions.push_back(cursor.region(part.peer));
  }
  return cursor.total();
}

}  // namespace

void add_holder_side(const ExchangeContext& context, const std::vector<Part>& gather,
                     const std::vector<Part>& back, SlotPlan& slot) {
  slot.gather_send_bytes = add_pieces(context, gather, slot.gather_pieces, slot.gather_sends);
  slot.return_receive_bytes = add_pieces(context, back, slot.return_pieces, slot.return_receives);
}

}  // namespace muonrt
