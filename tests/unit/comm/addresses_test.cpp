#include "comm/tcp/addresses.hpp"

#include <catch2/catch.hpp>

#include "comm/tcp/socket.hpp"
#include "comm/tcp/tcp_transport.hpp"
#include "support/loopback.hpp"
#include "support/thread_ranks.hpp"
#include "support/transport_checks.hpp"

using namespace muonrt;
using namespace transport_test;

namespace {

std::string texts(const std::vector<SocketAddress>& addresses) {
  std::string out;
  for (const SocketAddress& a : addresses) out += cat(a.text(), " ");
  return out;
}
std::string texts(const std::vector<Socket>& listeners) {
  std::string out;
  for (const Socket& s : listeners) out += cat(address_of(s).text(), " ");
  return out;
}
std::string texts(const std::vector<SocketRoute>& routes) {
  std::string out;
  for (const SocketRoute& r : routes) out += cat(r.from.host(), " to ", r.to.text(), " ");
  return out;
}

std::vector<SocketAddress> list(const std::vector<std::string>& of) {
  std::vector<SocketAddress> out;
  for (const std::string& text : of) out.push_back(resolve(text)[0]);
  return out;
}

/// Returns a socket that is connected to itself. The system can create one if a program connects to
/// a port of the ephemeral range at which no process listens.
Socket self_connection(int port, const std::string& host) {
  Socket out([&] { return socket(AF_INET, SOCK_STREAM, 0); });
  const sockaddr_in here = loopback::address(port);
  const SocketAddress to = resolve(cat(host, ':', port))[0];
  const bool good = bind(out.fd(), reinterpret_cast<const sockaddr*>(&here), sizeof here) == 0 &&
                    connect(out.fd(), to.get(), to.length()) == 0;
  return good ? std::move(out) : Socket();
}

}  // namespace

TEST_CASE("addresses: rank 0 listens at the addresses of its interface to which ranks connect",
          "[unit][comm][rendezvous]") {
  // Every address of the loopback network belongs to that interface.
  CHECK(texts(addresses_on("lo", list({"127.0.0.9:80"}))) == "127.0.0.9:80 ");
  CHECK(texts(addresses_on("lo", list({"198.51.100.7:80", "127.0.0.9:80", "127.0.0.8:80"}))) ==
        "127.0.0.9:80 127.0.0.8:80 ");
  // A name that resolves to both families, and an interface that has one.
  CHECK(texts(addresses_on("127.0.0.1", list({"[::1]:80", "127.0.0.1:80"}))) == "127.0.0.1:80 ");
  // An address that is translated (NAT) belongs to no interface.
  CHECK(texts(addresses_on("127.0.0.1", list({"198.51.100.7:80"}))) == "127.0.0.1:80 ");
}

TEST_CASE("addresses: routes lead from the interface to the addresses that it can reach",
          "[unit][comm][rendezvous]") {
  CHECK(texts(routes_from("127.0.0.1", list({"[::1]:80", "127.0.0.9:80"}))) ==
        "127.0.0.1 to 127.0.0.9:80 ");
  CHECK_THROWS_WITH(routes_from("127.0.0.1", list({"[::1]:80"})),
                    Catch::Contains("has no IPv6 address"));
  CHECK_THROWS_WITH(addresses_on("127.0.0.1", list({"[::1]:80"})),
                    Catch::Contains("has no IPv6 address"));
  CHECK_THROWS_WITH(routes_from("nowhere0", list({"127.0.0.1:80"})),
                    Catch::Contains("'nowhere0' does not exist on this machine"));
}

TEST_CASE("addresses: rank 0 listens at all addresses of its machine", "[unit][comm][rendezvous]") {
  const std::string port = cat(':', loopback::free_port());
  const auto all = list({"127.0.0.1" + port, "198.51.100.7" + port, "127.0.0.2" + port});
  const auto listeners = listen_at(all, 4);
  CHECK(texts(listeners) == cat("127.0.0.1", port, " 127.0.0.2", port, " "));
  CHECK_THROWS_WITH(listen_at(all, 4), Catch::Contains("cannot listen at 127.0.0.1"));
  CHECK_THROWS_WITH(listen_at(list({"198.51.100.7" + port}), 4),
                    Catch::Contains("cannot listen at 198.51.100.7"));
}

TEST_CASE("addresses: a free port is the same at all addresses", "[unit][comm][rendezvous]") {
  const auto listeners =
      listen_in_range(list({"127.0.0.1:0", "198.51.100.7:0", "127.0.0.2:0"}), {}, 4);
  const std::string port = cat(':', address_of(listeners.at(0)).port());
  CHECK(port != ":0");
  CHECK(texts(listeners) == cat("127.0.0.1", port, " 127.0.0.2", port, " "));
  CHECK(
      (port_of("127.0.0.1" + port) == address_of(listeners[0]).port() && port_of("[::1]:0") == 0));
  CHECK(with_port("[::1]:0", 80) == "[::1]:80");
}

TEST_CASE("addresses: a range of ports is used from its first free one, and its end is an error",
          "[unit][comm][rendezvous]") {
  const auto at = list({"127.0.0.1:0"});
  const int32_t first = loopback::free_port();
  std::vector<Socket> taken;
  for (int32_t port = first; port < first + 3; ++port) {
    try {
      taken.push_back(std::move(listen_in_range(at, {first, first + 2}, 4)[0]));
    } catch (const Error&) {  // another program uses a port of the range
      break;
    }
    const int32_t got = address_of(taken.back()).port();
    CHECK((got >= port && got <= first + 2));
  }
  CHECK_THROWS_WITH(listen_in_range(at, {first, first + 2}, 4),
                    Catch::Contains(cat("no port from ", first, " to ", first + 2, " is free")));
}

TEST_CASE("addresses: ranks connect at an address of an interface that is not its first",
          "[unit][comm][rendezvous]") {
  const std::string address = cat("127.0.0.9:", loopback::free_port());
  const auto config = [&](int rank) {
    return Rendezvous{rank, 2, address, "a secret of this test", 100, {}, {}, {}, "lo"};
  };
  CHECK(text_of(on_ranks(2, [&](int rank) {
          const auto t =
              make_tcp_transport(rendezvous_at_address(config(rank), Deadline::in_ms(30'000)));
          require_none(check_allgather(*t, 10, 1));
        })) == "");
  const auto error = error_of([&] { rendezvous_at_address(config(0), Deadline::in_ms(50)); });
  CHECK(is_error(error, Status::kTimeout, cat("listens at ", address, ": rank 1 of 2")));
}

TEST_CASE("socket: a connection to itself is detected, and frees its port at once",
          "[unit][comm][rendezvous]") {
  for (const char* host : {"127.0.0.1", "0.0.0.0"}) {
    const int port = loopback::free_port();
    Socket own = self_connection(port, host);
    REQUIRE(own);
    std::string why;
    CHECK_FALSE(is_connected(own, why));
    own = Socket();
    // Without SO_REUSEADDR, so the port must not be in TIME_WAIT.
    const Socket next([&] { return socket(AF_INET, SOCK_STREAM, 0); });
    const sockaddr_in here = loopback::address(port);
    CHECK(bind(next.fd(), reinterpret_cast<const sockaddr*>(&here), sizeof here) == 0);
  }
}
