#include "comm/tcp/socket.hpp"

#include <catch2/catch.hpp>

#include "support/loopback.hpp"

using namespace muonrt;

namespace {

/// A socket that calls the very port it was given, as the system may choose for whoever calls a
/// port of its range of which nobody listens.
Socket own_caller(int port, const std::string& host) {
  Socket out(socket(AF_INET, SOCK_STREAM, 0));
  const sockaddr_in here = loopback::address(port);
  const SocketAddress to = resolve(cat(host, ':', port))[0];
  const bool good = bind(out.fd(), reinterpret_cast<const sockaddr*>(&here), sizeof here) == 0 &&
                    connect(out.fd(), to.get(), to.length) == 0;
  return good ? std::move(out) : Socket();
}

}  // namespace

TEST_CASE("socket: one that has met itself is told, and leaves its port to rank 0 at once",
          "[unit][comm][rendezvous]") {
  for (const char* host : {"127.0.0.1", "0.0.0.0"}) {
    const int port = loopback::free_port();
    Socket own = own_caller(port, host);
    REQUIRE(own);
    CHECK(meets_itself(own));
    reset_when_closed(own);
    own = Socket();
    // Without SO_REUSEADDR: not even the wait after a close is left.
    const Socket next(socket(AF_INET, SOCK_STREAM, 0));
    const sockaddr_in here = loopback::address(port);
    CHECK(bind(next.fd(), reinterpret_cast<const sockaddr*>(&here), sizeof here) == 0);
  }
}

TEST_CASE("socket: a connection to another socket does not meet itself, and may share its port",
          "[unit][comm][rendezvous]") {
  const int port = loopback::free_port();
  const auto at = resolve(loopback::at_port(port));
  const auto doors = listen_at(at, 4);
  std::string why;
  const Socket caller = try_connect(at[0], nullptr, Deadline::in_ms(30'000), why);
  REQUIRE(caller);
  CHECK_FALSE(meets_itself(caller));
  int shares = 0;
  socklen_t length = sizeof shares;
  getsockopt(caller.fd(), SOL_SOCKET, SO_REUSEADDR, &shares, &length);
  CHECK(shares != 0);
}
