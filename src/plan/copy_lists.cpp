#include "plan/exchange.hpp"

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
int64_t add_pieces(const ExchangeContext& context, const std::vector<Part>& parts, DType dtype,
                   std::vector<Piece>& pieces, std::vector<Region>& regions) {
  MessageCursor cursor(size_of(dtype));
  for (size_t i = 0; i < parts.size(); ++i) {
    const Part& part = parts[i];
    if (i == 0 || part.peer != parts[i - 1].peer) cursor.begin_message();
    for (const Block& b : context.blocks_of(part.matrix, part.place))
      pieces.push_back(context.piece(part.matrix, b, cursor.take(b.numel())));
    if (i + 1 == parts.size() || parts[i + 1].peer != part.peer)
      regions.push_back(cursor.region(part.peer));
  }
  return cursor.total();
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

void add_holder_side(const ExchangeContext& context, const std::vector<Part>& gather,
                     const std::vector<Part>& back, SlotPlan& slot) {
  slot.gather_send_bytes =
      add_pieces(context, gather, slot.gather_dtype, slot.gather_pieces, slot.gather_sends);
  slot.return_receive_bytes =
      add_pieces(context, back, slot.return_dtype, slot.return_pieces, slot.return_receives);
}

}  // namespace muonrt
