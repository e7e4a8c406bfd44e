#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "simulation/plan.hpp"
#include "simulation/scheduler.hpp"

namespace simulation {

struct Address {
  uint32_t host = 0;  // in host byte order; 0 means any address
  uint16_t port = 0;
  bool operator==(const Address&) const = default;
};

/// The object that a file descriptor of a simulated process refers to.
struct Endpoint {
  enum class State { kNew, kListening, kConnecting, kConnected, kClosed };
  int fd = 0, process = 0;
  State state = State::kNew;
  bool blocks = false, counts = false;  // `counts`: the endpoint is an eventfd
  uint64_t counter = 0;
  Address local, remote;
  int peer = -1;        // descriptor of the peer, which may be closed
  int error = 0;        // SO_ERROR
  bool resets = false;  // SO_LINGER with 0 seconds is set
  std::string received;
  bool end_received = false, end_sent = false, reads_ended = false;
  std::deque<int> backlog;  // accepted connections
  size_t most_backlog = 0;
  // The segments in transit to this endpoint.
  struct Segment {
    std::string bytes;
    bool end = false;
  };
  std::deque<Segment> wire;
  int64_t last_arrival = 0;
  int64_t window_used = 0;  // bytes of the window that the peer may not use yet
  int64_t in_transit = 0;   // in bytes
};

/// The sockets of all processes and the network between them. On error, the functions return -1
/// and set errno, as the corresponding system calls do.
class Network {
 public:
  static constexpr int kFirstFd = 1 << 20;

  Network(Scheduler& scheduler, const Weather& weather, int processes);
  static Network* current() { return current_; }
  ~Network() { current_ = nullptr; }
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;

  static bool owns(int fd) { return current_ && fd >= kFirstFd; }
  static uint32_t host_of(int process) { return (10u << 24) + 1 + static_cast<uint32_t>(process); }

  int make_socket(bool blocks);
  int make_counter(uint64_t value, bool blocks);
  int bind(int fd, Address address);
  int listen(int fd, int backlog);
  int accept(int fd, bool blocks);
  int connect(int fd, Address to);
  ssize_t send(int fd, const void* data, size_t bytes, int flags);
  ssize_t receive(int fd, void* data, size_t bytes, int flags);
  int shutdown(int fd, int how);
  int close(int fd);
  int poll(pollfd* list, nfds_t count, int timeout_ms);
  Endpoint* find(int fd);

  // These functions inject faults.
  void kill(int process, bool silently);
  void reset_one(int process);
  void isolate(int process, int64_t until) { isolated_[static_cast<size_t>(process)] = until; }
  void flip_one(int process) { flips_[static_cast<size_t>(process)] = true; }

  /// Returns the number of open descriptors of a process.
  int open_of(int process) const;
  /// Returns the addresses on which a process listens.
  std::vector<Address> listening() const;
  /// Returns the first segments of this world. An unauthenticated process may have recorded them.
  const std::vector<std::string>& heard() const { return heard_; }

 private:
  Endpoint& add(bool blocks);
  Endpoint* listener_at(Address address);
  int64_t latency(int from, int to);
  int64_t blocked_until(int from, int to) const;
  void transmit(Endpoint& from, Endpoint::Segment segment);
  void segment_arrives(int fd);
  void send_reset(int fd, int from_process);
  void reset(int fd);
  void try_to_connect(int fd, Address to, int64_t give_up);
  void refuse(int fd, int error, int64_t delay);
  void close_endpoint(Endpoint& e);
  int64_t room(const Endpoint& e);
  short events_of(const Endpoint& e);
  void changed(const Endpoint& e);
  Endpoint* checked(int fd);

  static Network* current_;
  Scheduler& scheduler_;
  const Weather weather_;
  std::map<int, std::unique_ptr<Endpoint>> endpoints_;
  std::vector<int64_t> isolated_;  // for each process, the time when its network will work again
  std::vector<bool> flips_;        // for each process, whether a bit of the next segment is flipped
  std::vector<std::string> heard_;
  int next_fd_ = kFirstFd;
  uint16_t next_port_ = 40'000;
};

}  // namespace simulation
