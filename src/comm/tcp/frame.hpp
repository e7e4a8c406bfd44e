#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/crc32c.hpp"

namespace muonrt {

// The frames that TcpMailbox and TcpRouter exchange: a header, then `payload_bytes` bytes of
// payload. A reader allocates memory for a payload only if `frame_problem` accepts the header.

enum class FrameKind : int32_t {
  kMessage = 1,  // a part of a message
  kError = 2,    // to all ranks: an ErrorFrameHeader and a text
  kLeft = 3,     // to all ranks: `from` has left the channel
  // From the router:
  kDisconnected = 4,  // the connection of `from` has ended; a text gives the reason, if known
  kPause = 5,         // the receiver of the frame must not send messages to `from`
  kResume = 6,        // it may send messages to `from` again
};

struct FrameHeader {
  uint32_t magic;
  int32_t kind;
  uint64_t channel;
  int32_t from, to;  // `to` -1: all other ranks
  int64_t message_bytes, offset, payload_bytes;
  uint32_t content_sum;  // CRC-32C of the payload
  uint32_t head_sum;     // CRC-32C of all fields before this one
};
static_assert(sizeof(FrameHeader) == 56);

struct ErrorFrameHeader {
  int32_t status, rank;  // rank -1: `from`
};
static_assert(sizeof(ErrorFrameHeader) == 8);

/// Version of the protocol of a connection. The ranks compare it during the rendezvous.
constexpr int32_t kProtocolVersion = 2;
constexpr uint32_t kFrameMagic = 0x314d524d + ((kProtocolVersion - 1) << 24);
constexpr int64_t kMaxPayloadBytes = int64_t{1} << 20;
constexpr int64_t kTextLimit = 4000;  // bytes of an error's text
constexpr int32_t kToAll = -1;

inline uint32_t head_sum(const FrameHeader& h) {
  return crc32c(&h, offsetof(FrameHeader, head_sum));
}

/// Returns `h` with the checksums of the header and of this payload.
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

/// Makes a frame of another kind than kMessage.
inline FrameHeader control_frame(FrameKind kind, uint64_t channel, int32_t from, int32_t to,
                                 const void* content = nullptr, int64_t bytes = 0) {
  return with_checksums({0, static_cast<int32_t>(kind), channel, from, to, bytes, 0, bytes, 0, 0},
                        content);
}

/// Returns what is wrong with a header if there are `size` ranks; null: nothing.
inline const char* frame_problem(const FrameHeader& h, int size) {
  if (h.magic != kFrameMagic || h.head_sum != head_sum(h))
    return "the checksum of a frame header is wrong, so data was corrupted in transit";
  if (h.from < 0 || h.from >= size || h.to < kToAll || h.to >= size || h.from == h.to)
    return "a frame has an invalid sender or receiver";
  int64_t least = 0, most = 0;  // bytes of the payload
  bool to_all = false;
  switch (static_cast<FrameKind>(h.kind)) {
    case FrameKind::kMessage: {
      const bool inside =
          h.offset >= 0 && h.offset < h.message_bytes && h.offset % kMaxPayloadBytes == 0;
      const bool next =
          inside && h.payload_bytes == std::min(kMaxPayloadBytes, h.message_bytes - h.offset);
      return next && h.to != kToAll ? nullptr : "a part of a message has an invalid size or offset";
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
      return "a frame has an unknown kind";
  }
  const bool bounded = h.payload_bytes >= least && h.payload_bytes <= most &&
                       h.message_bytes == h.payload_bytes && h.offset == 0;
  return bounded && to_all == (h.to == kToAll) ? nullptr
                                               : "a frame has a size that its kind does not allow";
}

/// Returns true if the checksum of the payload is that of the header.
inline bool payload_matches(const FrameHeader& h, const void* content) {
  return crc32c(content, static_cast<size_t>(h.payload_bytes)) == h.content_sum;
}

}  // namespace muonrt
