#pragma once

#include <cstddef>
#include <cstdint>

namespace muonrt {

// What goes over the connections of a TCP post: a head, then `piece_bytes` of content.

enum class FrameKind : int32_t {
  kMessage = 1,  // a piece of a message
  kError = 2,    // to all: an ErrorHead and a text
  kLeft = 3,     // to all: `from` has left the channel
  // From the hub:
  kGone = 4,  // the connection of `from` has ended
  kFull = 5,  // `from` does not take what is sent to it, send it no more
  kRoom = 6,  // ... it does again
};

struct FrameHead {
  uint32_t magic;
  int32_t kind;
  uint64_t channel;
  int32_t from, to;  // `to` -1: all others
  int64_t message_bytes, offset, piece_bytes;
};
static_assert(sizeof(FrameHead) == 48);

struct ErrorHead {
  int32_t status, rank;  // -1: that of `from`
};
static_assert(sizeof(ErrorHead) == 8);

constexpr uint32_t kFrameMagic = 0x314d524d;
constexpr int64_t kPieceLimit = int64_t{1} << 20;
constexpr int32_t kToAll = -1;

inline FrameHead hubs_frame(FrameKind kind, int32_t about, int32_t to) {
  return {kFrameMagic, static_cast<int32_t>(kind), 0, about, to, 0, 0, 0};
}

/// Whether a head makes sense in a world of `size`.
inline bool sound(const FrameHead& h, int size) {
  return h.magic == kFrameMagic && h.kind >= 1 && h.kind <= 6 && h.from >= 0 && h.from < size &&
         h.to >= kToAll && h.to < size && h.piece_bytes >= 0 && h.piece_bytes <= kPieceLimit &&
         h.offset >= 0 && h.message_bytes >= 0 && h.offset <= h.message_bytes - h.piece_bytes;
}

}  // namespace muonrt
