#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "comm/tcp/frame.hpp"
#include "comm/tcp/handshake.hpp"
#include "comm/tcp/socket.hpp"

namespace muonrt {

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
  Dial dial;             // used in the state kConnecting
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
