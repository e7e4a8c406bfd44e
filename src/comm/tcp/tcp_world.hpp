#pragma once

#include <poll.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "backend/comm.hpp"
#include "base/crc32c.hpp"
#include "base/deadline.hpp"
#include "base/error.hpp"
#include "comm/tcp/rendezvous.hpp"

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
constexpr int64_t kMaxPayloadBytes = int64_t{1} << 20;
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
    case FrameKind::kDisconnected:
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

  // Writing: first frames that no sender waits for, then a part of a sender's message.
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

  /// Drops the bytes that are not written yet. Bytes that the peer has sent are still read.
  void stop_writing() noexcept;

  bool is_idle() const { return control.empty() && !part_data; }
  /// Appends a frame to `control`. Closes the link if there is not enough memory, or if the peer
  /// does not read.
  void queue(const FrameHeader& frame, const void* content = nullptr) noexcept;
  Progress write();
  /// Copies the rest of a part that is partly written. Drops a part that was not written at all.
  void release_part() noexcept;

  /// Reads from the socket. Stores the rest of the payload at its destination. Stores the bytes
  /// after the payload in `stage`.
  /// @param all  set to true if the bytes from the socket fill all available space.
  Progress fill(Stage& stage, bool& all);
  /// Take bytes of the payload, or of a header, from `stage`. Return true if it is complete.
  bool take_payload(Stage& stage);
  bool take_header(Stage& stage);

 private:
  void count(const char* data, int64_t bytes);
};

/// A frame that `rank` sends to its peers to report an error of a channel.
struct ErrorFrame {
  ErrorFrame(uint64_t channel, int32_t rank, const Error& error);
  FrameHeader head;
  char content[sizeof(ErrorFrameHeader) + kTextLimit];
};

/// The connections of one rank; README.md describes the protocol. A transport and its duplicates
/// share them, and each of these transports uses one channel. The thread of an operation reads and
/// writes all connections. If multiple operations run at the same time, one of their threads does
/// this for all of them. Threads: one thread for each channel; any thread may call `publish` and
/// `published_error`.
class TcpWorld {
 public:
  explicit TcpWorld(TcpConnections connections);
  /// Delivers the frames that are queued, for at most one second.
  ~TcpWorld();

  int rank() const { return rank_; }
  int size() const { return size_; }

  void enter(uint64_t channel);
  /// Ends this rank's use of the channel. Messages that this rank has sent are still delivered.
  void leave(uint64_t channel) noexcept;
  /// Ends all waits on the channel, on this rank and on the peers. Does not block.
  void publish(uint64_t channel, const Error& error) noexcept;
  std::optional<Error> published_error(uint64_t channel);

  using Sends = std::span<const SendTo>;
  using Receives = std::span<const ReceiveFrom>;
  /// Sends and receives the messages. Skips messages of this rank to itself.
  /// Errors: TIMEOUT; MISMATCH if the size of a message differs; COMM if a peer has left the
  /// channel or its connection has ended or is blocked; an error published on the channel.
  void exchange(uint64_t channel, Sends sends, Receives receives, Deadline deadline);

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Clock = Deadline::Clock;

  /// A message of the running operation of a channel.
  struct Message {
    char* data = nullptr;
    int64_t bytes = 0;
    uint64_t number = 0;
    bool pending = false;
    int64_t done = 0;  // number of bytes that were received, or passed to the connection
  };
  /// The messages that a channel sends to and receives from one peer.
  struct Peer {
    Message send, receive;
    uint64_t sent = 0, received = 0;  // messages of all operations, including the running one
    uint64_t granted = 0;             // messages that the peer has granted
    int64_t granted_bytes = 0;        // size of the last message that the peer has granted
    std::unique_ptr<char[]> early;    // kEarlyBytes bytes, if this rank has received from the peer
    int64_t early_bytes = 0;          // size of the message in `early`, or 0
    bool left = false, left_forwarded = false;
    std::optional<Clock::time_point> ended;  // when the end of the peer was first noticed
  };
  struct Channel {
    uint64_t id = 0;
    std::vector<Peer> peers;
    int64_t pending = 0;              // messages of the running operation
    std::optional<Error> error = {};  // the first error of the channel
    Peer& of(int32_t peer) { return peers[static_cast<size_t>(peer)]; }
    void complete(Message& message) {
      message.pending = false;
      --pending;
    }
  };

  Link& link(int32_t peer) { return links_[static_cast<size_t>(peer)]; }
  Channel* find(uint64_t channel);
  /// Decides which error an operation of the channel returns. No other code makes this decision.
  const std::optional<Error>& error_of(const Channel& c) const {
    return c.error ? c.error : error_;
  }
  void fail(Channel& channel, Error error);

  // tcp_world.cpp: operations
  void begin(Channel& channel, Sends sends, Receives receives);
  void end(Channel& channel) noexcept;
  std::optional<Error> why_impossible(Channel& channel, int32_t peer);
  [[noreturn]] void throw_timeout(Channel& channel);
  std::string missing_link_text(int32_t peer);
  void send_to_all(const FrameHeader& frame, const void* content = nullptr,
                   int32_t except = -1) noexcept;
  void send_rest() noexcept;
  void wake_all() noexcept;
  void end_link(int32_t peer, std::string_view why) noexcept;

  // tcp_frames.cpp: frames
  void grant(Channel& channel, int32_t peer);
  void receive_early(Channel& channel, int32_t peer);
  bool next_part(int32_t peer);
  void write(int32_t peer);
  void read(int32_t peer);
  void process_header(int32_t peer);
  void find_destination(int32_t peer);
  void process_frame(int32_t peer);
  void forward(int32_t peer, const FrameHeader& head, const void* content = nullptr) noexcept;

  // tcp_links.cpp: polling, connecting
  void wait(Lock& lock, Deadline deadline);
  void poll_links(Lock& lock, std::vector<pollfd>& fds, int timeout_ms);
  void start_server();
  void serve();
  void connect(int32_t peer);
  void continue_handshake(int32_t peer);
  void open(int32_t peer);
  void accept();
  void admit(PendingConnections::Connection& connection);

  const int rank_, size_;
  const std::string key_;
  TcpConnections run_;       // the links own the sockets
  std::vector<Link> links_;  // indexed by rank
  Stage stage_;

  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<uint64_t, Channel> channels_;
  PendingConnections pending_{key_, size_, [this](auto& c) { admit(c); }};
  std::optional<Error> error_;  // ends all channels: the connection to rank 0 is lost
  Socket wake_poll_;            // an eventfd
  int operations_ = 0;          // number of running operations
  bool polling_ = false;        // the thread of an operation is polling
  bool served_ = false;         // no operation has run since the last poll of serve()
  bool failed_ = false;         // this rank has published an error
  bool stop_ = false;
  std::vector<pollfd> poll_, server_poll_;  // the arguments of poll()
  std::thread server_;
};

}  // namespace muonrt
