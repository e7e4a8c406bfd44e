#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/crc32c.hpp"

namespace muonrt {

// The frames on a connection between two ranks. A frame is a header, followed by `payload_bytes`
// bytes of payload. The reader of a frame does not allocate memory for it.

enum class FrameKind : int32_t {
  kData = 1,   // a part of a message
  kGrant = 2,  // the sender of the frame has posted a receive of `message_bytes` bytes
  // If `to` is kToAll, rank 0 forwards the following kinds to all other ranks:
  kError = 3,         // an ErrorFrameHeader, followed by an error text
  kLeft = 4,          // `from` has left the channel; if it is channel 0, all channels
  kDisconnected = 5,  // sent by rank 0 when the connection of `from` has ended
};

constexpr int32_t kToAll = -1;

struct FrameHeader {
  uint32_t magic = 0;
  FrameKind kind = {};
  uint64_t channel = 0;
  int32_t from = 0, to = kToAll;
  uint64_t number = 0;  // number of the message in the channel from one rank to the other
  int64_t message_bytes = 0, offset = 0, payload_bytes = 0;
  uint32_t content_sum = 0;  // CRC-32C of the payload
  uint32_t head_sum = 0;     // CRC-32C of all fields before this field
};
static_assert(sizeof(FrameHeader) == 64);

struct ErrorFrameHeader {
  int32_t status, rank;  // if rank is -1, the error is from the sender of the frame
};
static_assert(sizeof(ErrorFrameHeader) == 8);

/// Version of the protocol of a connection. The ranks compare it during the rendezvous.
constexpr uint16_t kProtocolVersion = 6;
constexpr uint32_t kFrameMagic = 0x314d524d + ((kProtocolVersion - 1) << 24);
constexpr int64_t kMaxPayloadBytes = int64_t{256} << 10;
constexpr int64_t kTextLimit = 4000;  // maximum size of an error text in bytes
/// A message of at most this size may be sent before its receive is posted.
constexpr int64_t kEarlyBytes = 16384;

inline uint32_t head_sum(const FrameHeader& h) {
  return crc32c(&h, offsetof(FrameHeader, head_sum));
}

/// Returns `h` with the checksums of the header and of the payload `content`.
inline FrameHeader with_checksums(FrameHeader h, const void* content) {
  h.magic = kFrameMagic;
  h.content_sum = crc32c(content, static_cast<size_t>(h.payload_bytes));
  h.head_sum = head_sum(h);
  return h;
}

/// Checks a header that rank `me` of `size` reads from its connection to rank `peer`. Returns null
/// if the header is valid, and otherwise a string that describes the problem.
inline const char* frame_problem(const FrameHeader& h, int32_t peer, int32_t me, int size) {
  if (h.magic != kFrameMagic || h.head_sum != head_sum(h))
    return "the checksum of a frame header is wrong, so data was corrupted in transit";
  const bool between = h.kind == FrameKind::kData || h.kind == FrameKind::kGrant;
  const bool forwarded = !between && peer == 0 && h.from >= 0 && h.from < size && h.from != me;
  if ((h.from != peer && !forwarded) || (h.to != me && (between || h.to != kToAll)))
    return "a frame has an invalid sender or receiver";
  bool fits = h.payload_bytes == 0;
  switch (h.kind) {
    case FrameKind::kData:
      fits = h.offset >= 0 && h.offset < h.message_bytes && h.offset % kMaxPayloadBytes == 0 &&
             h.payload_bytes == std::min(kMaxPayloadBytes, h.message_bytes - h.offset);
      return fits ? nullptr : "a part of a message has an invalid size or offset";
    case FrameKind::kGrant:
      fits = fits && h.message_bytes > 0 && h.offset == 0;
      return fits ? nullptr : "a size of a message is invalid";
    case FrameKind::kError:
      fits = h.payload_bytes >= int64_t{sizeof(ErrorFrameHeader)} &&
             h.payload_bytes <= int64_t{sizeof(ErrorFrameHeader)} + kTextLimit;
      break;
    case FrameKind::kLeft:
      break;
    case FrameKind::kDisconnected:
      if (peer != 0) return "only rank 0 sends frames of this kind";
      break;
    default:
      return "a frame has an unknown kind";
  }
  return fits ? nullptr : "a frame has a size that its kind does not allow";
}

}  // namespace muonrt
