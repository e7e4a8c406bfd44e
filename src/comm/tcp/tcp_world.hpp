#pragma once

#include <poll.h>

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "backend/comm.hpp"
#include "base/deadline.hpp"
#include "base/error.hpp"
#include "comm/tcp/link.hpp"
#include "comm/tcp/rendezvous.hpp"

namespace muonrt {

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
  TcpWorld(const TcpWorld&) = delete;
  TcpWorld& operator=(const TcpWorld&) = delete;

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
  };

  Link& link(int32_t peer) { return links_[static_cast<size_t>(peer)]; }
  Channel* find(uint64_t channel);
  const std::optional<Error>& error_of(const Channel& channel) const;
  void fail(Channel& channel, Error error);

  // tcp_world.cpp: operations
  void begin(Channel& channel, Sends sends, Receives receives);
  void end(Channel& channel) noexcept;
  static void complete(Channel& channel, Message& message);
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
  bool stop_ = false;
  std::vector<pollfd> poll_, server_poll_;  // the arguments of poll()
  std::thread server_;
};

}  // namespace muonrt
