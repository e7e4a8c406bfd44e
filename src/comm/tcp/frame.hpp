#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/crc32c.hpp"

namespace muonrt {

// What goes over the connections of a TCP post: a head, then `piece_bytes` of content. Whoever
// reads a head takes memory only for what `frame_problem` lets pass.

enum class FrameKind : int32_t {
  kMessage = 1,  // a piece of a message
  kError = 2,    // to all: an ErrorFrameHeader and a text
  kLeft = 3,     // to all: `from` has left the channel
  // From the hub:
  kDisconnected = 4,  // the connection of `from` has ended; a text says why, if that is known
  kPause = 5,         // `from` does not take what is sent to it, send it no more
  kResume = 6,        // ... it does again
};

struct FrameHeader {
  uint32_t magic;
  int32_t kind;
  uint64_t channel;
  int32_t from, to;  // `to` -1: all others
  int64_t message_bytes, offset, payload_bytes;
  uint32_t content_sum;  // CRC-32C of the content
  uint32_t head_sum;     // and of all fields before this one
};
static_assert(sizeof(FrameHeader) == 56);

struct ErrorFrameHeader {
  int32_t status, rank;  // -1: that of `from`
};
static_assert(sizeof(ErrorFrameHeader) == 8);

/// Of all that is said over a connection. Ranks that meet tell each other theirs.
constexpr int32_t kProtocolVersion = 2;
constexpr uint32_t kFrameMagic = 0x314d524d + ((kProtocolVersion - 1) << 24);
constexpr int64_t kMaxPayloadBytes = int64_t{1} << 20;
constexpr int64_t kTextLimit = 4000;  // bytes of an error's words
constexpr int32_t kToAll = -1;

inline uint32_t head_sum(const FrameHeader& h) {
  return crc32c(&h, offsetof(FrameHeader, head_sum));
}

/// `h` with its checksums, for this content.
inline FrameHeader with_checksums(FrameHeader h, const void* content) {
  h.magic = kFrameMagic;
  h.content_sum = crc32c(content, static_cast<size_t>(h.payload_bytes));
  h.head_sum = head_sum(h);
  return h;
}

inline FrameHeader message_frame(uint64_t channel, int32_t from, int32_t to, const void* message,
                                 int64_t bytes, int64_t offset) {
  const FrameHeader h{0,      static_cast<int32_t>(FrameKind::kMessage),  channel, from, to, bytes,
                      offset, std::min(kMaxPayloadBytes, bytes - offset), 0,       0};
  return with_checksums(h, static_cast<const char*>(message) + offset);
}

/// One that is no piece of a message.
inline FrameHeader control_frame(FrameKind kind, uint64_t channel, int32_t from, int32_t to,
                                 const void* content = nullptr, int64_t bytes = 0) {
  return with_checksums({0, static_cast<int32_t>(kind), channel, from, to, bytes, 0, bytes, 0, 0},
                        content);
}

/// What is wrong with a head in a world of `size`; null: nothing.
inline const char* frame_problem(const FrameHeader& h, int size) {
  if (h.magic != kFrameMagic || h.head_sum != head_sum(h))
    return "the head of a frame has changed on its way (its checksum is another one)";
  if (h.from < 0 || h.from >= size || h.to < kToAll || h.to >= size || h.from == h.to)
    return "a frame goes between ranks that are none";
  int64_t least = 0, most = 0;  // of the content
  bool to_all = false;
  switch (static_cast<FrameKind>(h.kind)) {
    case FrameKind::kMessage: {
      const bool inside =
          h.offset >= 0 && h.offset < h.message_bytes && h.offset % kMaxPayloadBytes == 0;
      const bool next =
          inside && h.payload_bytes == std::min(kMaxPayloadBytes, h.message_bytes - h.offset);
      return next && h.to != kToAll ? nullptr : "a frame is no piece of a message";
    }
    case FrameKind::kError:
      to_all = true;
      least = sizeof(ErrorFrameHeader);
      most = least + kTextLimit;
      break;
    case FrameKind::kLeft:
      to_all = true;
      break;
    case FrameKind::kDisconnected:
      to_all = true;
      most = kTextLimit;
      break;
    case FrameKind::kPause:
    case FrameKind::kResume:
      break;
    default:
      return "a frame is of no kind";
  }
  const bool bounded = h.payload_bytes >= least && h.payload_bytes <= most &&
                       h.message_bytes == h.payload_bytes && h.offset == 0;
  return bounded && to_all == (h.to == kToAll) ? nullptr
                                               : "a frame has sizes that its kind has not";
}

/// Whether the content is what was sent behind this head.
inline bool payload_matches(const FrameHeader& h, const void* content) {
  return crc32c(content, static_cast<size_t>(h.payload_bytes)) == h.content_sum;
}

}  // namespace muonrt
