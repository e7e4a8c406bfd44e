#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/crc32c.hpp"
#include "comm/tcp/handshake.hpp"
#include "comm/tcp/socket.hpp"

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

/// Bytes that have been received but not yet processed. One object is enough for all links, because
/// the bytes from one link are processed before the next link is read.
struct Stage {
  static constexpr size_t kBytes = size_t{64} << 10;
  std::unique_ptr<char[]> data = std::make_unique_for_overwrite<char[]>(kBytes);
  size_t begin = 0, end = 0;
  bool empty() const { return begin == end; }
};

/// The connection between this rank and another rank, with the frames that are being written and
/// read. No function blocks. Threads: only one at a time.
struct Link {
  enum class State { kNone, kConnecting, kOpen, kClosed, kFailed };  // kFailed: cannot connect
  /// The destination of the payload of a frame.
  enum class Sink { kDiscard, kReceive, kEarly, kText };

  State state = State::kNone;
  Socket socket;
  std::string why;       // why the last attempt to connect failed, or why the link is closed
  bool goodbye = false;  // the peer has left all channels
  std::optional<Deadline::Clock::time_point> disconnected;  // when rank 0 reported the peer's end
  Dial dial;                                                // used in the state kConnecting
  Deadline try_again = Deadline::in_ms(0), connect_by = Deadline::in_ms(0);

  // Reading.
  std::unique_ptr<char[]> text;
  FrameHeader head{};
  size_t head_bytes = 0;     // number of bytes of `head` that were read
  int64_t payload_left = 0;  // number of bytes of the payload that were not read yet
  Sink sink = Sink::kDiscard;
  char* sink_at = nullptr;
  uint64_t sink_channel = 0;
  uint32_t sum = 0;  // CRC-32C of the payload so far

  // Writing: first frames that no sender waits for, then a part of a message in its sender's
  // memory.
  std::string control;
  size_t control_at = 0;
  FrameHeader part{};
  const char* part_data = nullptr;  // null if there is no part
  int64_t part_at = 0;              // number of bytes that were written
  std::string rest;                 // copy of a part whose sender has returned
  bool writable = true;             // false if the peer has closed the connection

  /// Prepares an open link by allocating all its memory. Errors: OUT_OF_MEMORY.
  void allocate();
  void close(std::string_view reason) noexcept;

  /// Call this function after a write has failed. It drops the bytes that are not written yet.
  /// Bytes that the peer has sent are still read.
  void stop_writing() noexcept;

  bool is_idle() const { return control.empty() && !part_data; }
  /// Appends a frame to `control`. Closes the link if there is not enough memory, or if the peer
  /// does not read.
  void queue(const FrameHeader& frame, const void* content = nullptr) noexcept;
  /// Writes as much as the socket accepts.
  Progress write();
  /// Copies the rest of a part that is partly written. Drops a part that was not written at all.
  void release_part() noexcept;

  /// Reads from the socket. Stores the rest of the payload at its destination. Stores the bytes
  /// after the payload in `stage`.
  /// @param all  set to true if the bytes from the socket fill all available space.
  Progress fill(Stage& stage, bool& all);
  /// Takes bytes of the payload from `stage`. Returns true if the payload is complete.
  bool take_payload(Stage& stage);
  /// Takes bytes of a header from `stage`. Returns true if the header is complete.
  bool take_header(Stage& stage);

 private:
  void count(const char* data, int64_t bytes);
};

}  // namespace muonrt
