#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/crc32c.hpp"

namespace muonrt {

// What goes over the connections of a TCP post: a head, then `piece_bytes` of content. Whoever
// reads a head takes memory only for what `fault_of` lets pass.

enum class FrameKind : int32_t {
  kMessage = 1,  // a piece of a message
  kError = 2,    // to all: an ErrorHead and a text
  kLeft = 3,     // to all: `from` has left the channel
  // From the hub:
  kGone = 4,  // the connection of `from` has ended; a text says why, if that is known
  kFull = 5,  // `from` does not take what is sent to it, send it no more
  kRoom = 6,  // ... it does again
};

struct FrameHead {
  uint32_t magic;
  int32_t kind;
  uint64_t channel;
  int32_t from, to;  // `to` -1: all others
  int64_t message_bytes, offset, piece_bytes;
  uint32_t content_sum;  // CRC-32C of the content
  uint32_t head_sum;     // and of all fields before this one
};
static_assert(sizeof(FrameHead) == 56);

struct ErrorHead {
  int32_t status, rank;  // -1: that of `from`
};
static_assert(sizeof(ErrorHead) == 8);

/// Of all that is said over a connection. Ranks that meet tell each other theirs.
constexpr int32_t kWireVersion = 2;
constexpr uint32_t kFrameMagic = 0x314d524d + ((kWireVersion - 1) << 24);
constexpr int64_t kPieceLimit = int64_t{1} << 20;
constexpr int64_t kTextLimit = 4000;  // bytes of an error's words
constexpr int32_t kToAll = -1;

inline uint32_t head_sum(const FrameHead& h) { return crc32c(&h, offsetof(FrameHead, head_sum)); }

/// `h` with its checksums, for this content.
inline FrameHead sealed(FrameHead h, const void* content) {
  h.magic = kFrameMagic;
  h.content_sum = crc32c(content, static_cast<size_t>(h.piece_bytes));
  h.head_sum = head_sum(h);
  return h;
}

inline FrameHead message_frame(uint64_t channel, int32_t from, int32_t to, const void* message,
                               int64_t bytes, int64_t offset) {
  const FrameHead h{0,      static_cast<int32_t>(FrameKind::kMessage), channel, from, to, bytes,
                    offset, std::min(kPieceLimit, bytes - offset),     0,       0};
  return sealed(h, static_cast<const char*>(message) + offset);
}

/// One that is no piece of a message.
inline FrameHead control_frame(FrameKind kind, uint64_t channel, int32_t from, int32_t to,
                               const void* content = nullptr, int64_t bytes = 0) {
  return sealed({0, static_cast<int32_t>(kind), channel, from, to, bytes, 0, bytes, 0, 0}, content);
}

/// What is wrong with a head in a world of `size`; null: nothing.
inline const char* fault_of(const FrameHead& h, int size) {
  if (h.magic != kFrameMagic || h.head_sum != head_sum(h))
    return "the head of a frame has changed on its way (its checksum is another one)";
  if (h.from < 0 || h.from >= size || h.to < kToAll || h.to >= size || h.from == h.to)
    return "a frame goes between ranks that are none";
  int64_t least = 0, most = 0;  // of the content
  bool to_all = false;
  switch (static_cast<FrameKind>(h.kind)) {
    case FrameKind::kMessage: {
      const bool inside =
          h.offset >= 0 && h.offset < h.message_bytes && h.offset % kPieceLimit == 0;
      const bool next =
          inside && h.piece_bytes == std::min(kPieceLimit, h.message_bytes - h.offset);
      return next && h.to != kToAll ? nullptr : "a frame is no piece of a message";
    }
    case FrameKind::kError:
      to_all = true;
      least = sizeof(ErrorHead);
      most = least + kTextLimit;
      break;
    case FrameKind::kLeft:
      to_all = true;
      break;
    case FrameKind::kGone:
      to_all = true;
      most = kTextLimit;
      break;
    case FrameKind::kFull:
    case FrameKind::kRoom:
      break;
    default:
      return "a frame is of no kind";
  }
  const bool bounded = h.piece_bytes >= least && h.piece_bytes <= most &&
                       h.message_bytes == h.piece_bytes && h.offset == 0;
  return bounded && to_all == (h.to == kToAll) ? nullptr
                                               : "a frame has sizes that its kind has not";
}

/// Whether the content is what was sent behind this head.
inline bool carries(const FrameHead& h, const void* content) {
  return crc32c(content, static_cast<size_t>(h.piece_bytes)) == h.content_sum;
}

}  // namespace muonrt
