#include "pipeline/own_messages.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/error.hpp"
#include "plan/buffers.hpp"

namespace muonrt {

namespace {

/// The byte range of a rank's message to itself in the send buffer.
struct OwnMessage {
  int64_t begin, end;  // including its padding
  int64_t distance;    // distance from `begin` to its position in the receive buffer

  /// Returns the new offset of a block that was at `offset`.
  int64_t moved(int64_t offset) const {
    if (offset < begin) return offset;
    return offset < end ? offset + distance : offset - (end - begin);
  }
};

/// Removes the message to itself from both lists. Returns its position, or nullopt if there is
/// none.
std::optional<OwnMessage> take_own(std::vector<Region>& sends, std::vector<Region>& receives,
                                   int32_t rank, const SendAndReceive& buffers) {
  const int64_t distance =
      static_cast<const char*>(buffers.receive) - static_cast<const char*>(buffers.send);
  const auto is_own = [&](const Region& r) { return r.peer == rank; };
  const auto out = std::find_if(sends.begin(), sends.end(), is_own);
  const auto in = std::find_if(receives.begin(), receives.end(), is_own);
  if (out == sends.end() && in == receives.end()) return std::nullopt;
  MUONRT_CHECK_INTERNAL(out != sends.end() && in != receives.end() && out->bytes == in->bytes,
                        "rank ", rank, " sends itself other bytes than it receives");
  const OwnMessage own{out->offset, out->offset + stored_bytes(*out),
                       distance + in->offset - out->offset};
  sends.erase(out);
  receives.erase(in);
  for (Region& r : sends) r.offset = own.moved(r.offset);
  return own;
}

template <class Block>
void move(std::vector<Block>& blocks, const OwnMessage& own, DType dtype) {
  const int64_t each = size_of(dtype);
  for (Block& b : blocks) b.packed_offset = own.moved(b.packed_offset * each) / each;
}

}  // namespace

void keep_own_messages_in_place(RankChunk& chunk, int32_t rank, const SendAndReceive& gather,
                                const SendAndReceive& returned) {
  if (const auto own = take_own(chunk.gather_sends, chunk.gather_receives, rank, gather))
    move(chunk.gather_blocks, *own, chunk.gather_dtype);
  const auto own = take_own(chunk.return_sends, chunk.return_receives, rank, returned);
  if (!own) return;
  if (chunk.kind == ChunkKind::kSlices) {
    move(chunk.owner_state_blocks, *own, chunk.return_dtype);
  } else {
    move(chunk.return_matrix_blocks, *own, chunk.return_dtype);
  }
}

}  // namespace muonrt
