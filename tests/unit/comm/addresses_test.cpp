#include <poll.h>

#include <catch2/catch.hpp>

#include "comm/tcp/socket.hpp"
#include "support/loopback.hpp"

using namespace muonrt;

namespace {

std::string text(const SocketAddress& address) { return address.text(); }
std::string text(const Socket& listener) { return address_of(listener).text(); }
std::string text(const SocketRoute& route) {
  return cat(route.from.host(), " to ", route.to.text());
}
template <class T>
std::string texts(const std::vector<T>& of) {
  std::string out;
  for (const T& one : of) out += text(one) + ' ';
  return out;
}

std::vector<SocketAddress> list(const std::vector<std::string>& of) {
  std::vector<SocketAddress> out;
  for (const std::string& text : of) out.push_back(resolve(text)[0]);
  return out;
}

}  // namespace

TEST_CASE("addresses: rank 0 listens at the addresses of its interface to which ranks connect",
          "[unit][comm][rendezvous]") {
  // Every address of the loopback network belongs to the interface lo.
  CHECK(texts(addresses_on("lo", list({"127.0.0.9:80"}))) == "127.0.0.9:80 ");
  CHECK(texts(addresses_on("lo", list({"198.51.100.7:80", "127.0.0.9:80", "127.0.0.8:80"}))) ==
        "127.0.0.9:80 127.0.0.8:80 ");
  // Tests a name that resolves to addresses of both families, and an interface that has an address
  // of only one family.
  CHECK(texts(addresses_on("127.0.0.1", list({"[::1]:80", "127.0.0.1:80"}))) == "127.0.0.1:80 ");
  // A translated address (NAT) does not belong to any interface of the machine.
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

TEST_CASE("addresses: rank 0 listens on one free port at all addresses of its machine",
          "[unit][comm][rendezvous]") {
  const auto listeners =
      listen_in_range(list({"127.0.0.1:0", "198.51.100.7:0", "127.0.0.2:0"}), {});
  const std::string port = cat(':', address_of(listeners.at(0)).port());
  CHECK(port != ":0");
  CHECK(texts(listeners) == cat("127.0.0.1", port, " 127.0.0.2", port, " "));
  for (const std::string host : {"198.51.100.7", "127.0.0.1"})
    CHECK_THROWS_WITH(listen_at(list({host + port})), Catch::Contains("cannot listen at " + host));
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
      taken.push_back(std::move(listen_in_range(at, {first, first + 2})[0]));
    } catch (const Error&) {  // another program uses a port of the range
      break;
    }
    const int32_t got = address_of(taken.back()).port();
    CHECK((got >= port && got <= first + 2));
  }
  CHECK_THROWS_WITH(listen_in_range(at, {first, first + 2}),
                    Catch::Contains(cat("no port from ", first, " to ", first + 2, " is free")));
}

TEST_CASE("socket: a connection to itself is detected, and frees its port at once",
          "[unit][comm][rendezvous]") {
  for (const char* host : {"127.0.0.1", "0.0.0.0"}) {
    // The system can connect a socket to itself if a program connects to a port in the ephemeral
    // range on which no process is listening.
    const int port = loopback::free_port();
    const SocketAddress here = resolve(loopback::at_port(port))[0];
    std::string why;
    Socket own = begin_connect(resolve(cat(host, ':', port))[0], here, why);
    REQUIRE(wait_for(own.fd(), POLLOUT, Deadline::in_ms(10'000)));
    REQUIRE(address_of(own) == peer_of(own));
    CHECK_FALSE(is_connected(own, why));
    own = Socket();
    // This socket does not set SO_REUSEADDR, so it can bind the port only if the port is not in
    // TIME_WAIT.
    const Socket next([&] { return socket(AF_INET, SOCK_STREAM, 0); });
    CHECK(bind(next.fd(), here.get(), here.length()) == 0);
  }
}
