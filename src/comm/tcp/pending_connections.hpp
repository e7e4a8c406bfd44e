#pragma once

#include <poll.h>

#include <functional>
#include <list>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "comm/tcp/handshake.hpp"
#include "comm/tcp/socket.hpp"

namespace muonrt {

/// The accepted connections whose other end has not yet proved that it knows the secret. Each
/// connection receives a greeting. If no claim with a valid proof arrives within five seconds, the
/// connection is closed without an answer.
class PendingConnections {
 public:
  struct Connection {
    Socket socket;
    Nonce greeted{};
    Claim claim{};
    size_t got = 0;  // number of bytes of the claim that were received
    Deadline deadline = Deadline::in_ms(5000);
    /// Answers the claim. Returns false if the connection is broken.
    bool send_answer(const std::string& secret, Answer answer) const;
  };
  /// Called with each connection whose proof is valid. The function may move the socket out of the
  /// connection. If it throws, it is called again later.
  using Examine = std::function<void(Connection&)>;

  /// @param secret  must outlive the object.
  PendingConnections(const std::string& secret, int ranks, Examine examine)
      : secret_(secret), most_(256 + static_cast<size_t>(ranks)), examine_(std::move(examine)) {}

  void add_to(std::vector<pollfd>& fds) const;
  /// Accepts connections. Closes the oldest pending connection if there are too many, or if the
  /// process cannot open another file. Returns 0, or the error of accept() if no connection is
  /// pending.
  int accept(const Socket& listener);
  void read();

  bool empty() const { return list_.empty(); }
  /// Returns the maximum number of pending connections.
  size_t most() const { return most_; }
  /// Return the number of connections that were closed, and the reason why the last one was closed.
  int64_t rejected() const { return rejected_; }
  const char* last_reason() const { return last_reason_; }

 private:
  bool keeps_waiting(Connection& c);
  bool reject(const char* reason);
  void drop_oldest();

  const std::string& secret_;
  const size_t most_;
  const Examine examine_;
  std::list<Connection> list_;
  int64_t rejected_ = 0;
  const char* last_reason_ = "";
};

}  // namespace muonrt
