#include <algorithm>
#include <cstddef>

#include "plan/exchange.hpp"
#include "plan/relay.hpp"

namespace muonrt {

namespace {

/// The row of a matrix that is row `row` of the part `rows`.
int64_t row_of_matrix(const Runs& rows, int64_t row) {
  for (const Run& run : rows) {
    if (row < run.end - run.begin) return run.begin + row;
    row -= run.end - run.begin;
  }
  return row;
}

/// Index in the whole tensor of element (row, col) of a matrix or part.
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

/// One list for both directions: the gather packs it, the commit unpacks it.
/// @param gradients  the parts are of gradients, wherever those lie.
void add_pieces(const ExchangeContext& context, const std::vector<Part>& parts, bool gradients,
                MessageCursor& cursor, std::vector<Piece>& pieces, std::vector<Region>& regions) {
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    if (i == 0 || part.peer != parts[i - 1].peer) cursor.begin_message();
    const auto& blocks = gradients ? context.grad_blocks_of(part.matrix, part.place)
                                   : context.blocks_of(part.matrix, part.place);
    for (const Block& b : blocks)
      pieces.push_back(context.piece(part.matrix, b, cursor.take(b.numel())));
    if (i + 1 == parts.size() || parts[i + 1].peer != part.peer)
      regions.push_back(cursor.region(part.peer));
  }
}

int64_t end_of(const std::vector<Region>& regions) {
  return regions.empty() ? 0 : regions.back().offset + regions.back().bytes;
}

/// Behind what owners send. A rank that forwards sends all that they sent it, as it lies there.
void add_relay(const ExchangeContext& context, const Back& back, MessageCursor& cursor,
               SlotPlan& slot) {
  const int64_t received = end_of(slot.return_receives);
  for (const int32_t rank : back.forward_to) {
    if (received > 0) slot.relay_sends.push_back({rank, 0, received});
  }
  for (size_t i = 0; i < back.relayed.size();) {
    size_t end = i;
    while (end < back.relayed.size() && back.head[end] == back.head[i]) ++end;
    const std::vector<Part> parts(back.relayed.begin() + static_cast<std::ptrdiff_t>(i),
                                  back.relayed.begin() + static_cast<std::ptrdiff_t>(end));
    const int64_t begin = cursor.total();
    std::vector<Region> as_forwarded;
    add_pieces(context, parts, false, cursor, slot.return_pieces, as_forwarded);
    slot.relay_receives.push_back({back.head[i], begin, end_of(as_forwarded) - begin});
    i = end;
  }
}

}  // namespace

Piece ExchangeContext::piece(int32_t id, const Block& b, int64_t packed_offset) const {
  const Matrix& m = matrix(id);
  const ParamSpec& spec = plan.problem().params[static_cast<size_t>(m.param)];
  const auto parts = static_cast<size_t>(parts_of(spec));
  const MatrixPart* part =
      spec.parts.empty() ? nullptr : &spec.parts[static_cast<size_t>(m.index) % parts];
  Piece out{m.param,       id,    b.rows, b.cols, b.local_offset, b.local_ld,
            packed_offset, b.row, b.col,  0};
  out.update_scale = static_cast<float>(part ? part->update_scale : spec.update_scale);
  out.decay_scale = static_cast<float>(part ? part->decay_scale : spec.decay_scale);
  out.tensor_index = index_in_tensor(spec, m.index, b.row, b.col);
  out.tensor_ld = spec.layout.shape().back();
  return out;
}

Back back_of(const ExchangeContext& context, int rank, const Slot& slot) {
  Back out;
  std::vector<std::pair<int32_t, Part>> relayed;  // with their heads
  std::vector<int> equal;                         // of this rank, by replica; the same for all here
  const HolderPlace* mine = nullptr;
  for (const int32_t id : slot.matrices) {
    const Matrix& m = context.matrix(id);
    const HolderGroup& group = context.holders.group(m.param, m.index);
    const HolderPlace* place = group.find(rank);
    if (place == nullptr || context.blocks_of(id, *place).empty()) continue;
    if (context.plan.each_replica() && place->replica != m.replica) continue;
    const Part part{m.owner, id, *place};
    if (slot.relay > 0 && equal.empty()) {
      mine = place;
      equal =
          context.plan.problem().params[static_cast<size_t>(m.param)].layout.equal_holders(rank);
    }
    const int32_t head = slot.relay > 0
                             ? head_replica(place->replica, m.replica, slot.relay, group.replicas)
                             : place->replica;
    if (head == place->replica) {
      out.direct.push_back(part);
    } else {
      relayed.emplace_back(equal[static_cast<size_t>(head)], part);
    }
  }
  const auto key = [](const Part& p) { return std::pair(p.peer, p.matrix); };
  std::sort(out.direct.begin(), out.direct.end(),
            [&](const Part& a, const Part& b) { return key(a) < key(b); });
  std::sort(relayed.begin(), relayed.end(), [&](const auto& a, const auto& b) {
    return std::pair(a.first, key(a.second)) < std::pair(b.first, key(b.second));
  });
  for (const auto& [head, part] : relayed) {
    out.head.push_back(head);
    out.relayed.push_back(part);
  }
  if (mine != nullptr) out.forward_to = block_mates(equal, rank, mine->replica, slot.relay);
  return out;
}

void add_holder_side(const ExchangeContext& context, const std::vector<Part>& gather,
                     const Back& back, SlotPlan& slot) {
  MessageCursor sends(size_of(slot.gather_dtype)), receives(size_of(slot.return_dtype));
  add_pieces(context, gather, true, sends, slot.gather_pieces, slot.gather_sends);
  slot.gather_send_bytes = sends.total();
  add_pieces(context, back.direct, false, receives, slot.return_pieces, slot.return_receives);
  add_relay(context, back, receives, slot);
  slot.return_receive_bytes = receives.total();
}

}  // namespace muonrt
