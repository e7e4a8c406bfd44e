#pragma once

#include <fcntl.h>
#include <poll.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "comm/tcp/addresses.hpp"
#include "comm/tcp/tcp_transport.hpp"

// Ranks over TCP in one process, without a rendezvous.
namespace transport_test {

/// Returns the two ends of a connection over the loopback address.
inline std::pair<muonrt::Socket, muonrt::Socket> tcp_pair() {
  using namespace muonrt;
  const Socket listener = std::move(listen_in_range(resolve("127.0.0.1:0"), {}, 1)[0]);
  std::string why;
  Socket one = begin_connect(address_of(listener), {}, why);
  wait_for(listener.fd(), POLLIN, Deadline::in_ms(30'000));
  fcntl(one.fd(), F_SETFL, 0);  // tests read with blocking calls
  Socket two([&] { return accept4(listener.fd(), nullptr, nullptr, SOCK_CLOEXEC); });
  return {std::move(one), std::move(two)};
}

/// Connects `size` ranks with a rendezvous, and returns the connections of each rank.
inline std::vector<muonrt::TcpConnections> tcp_connections(int size) {
  using namespace muonrt;
  std::vector<TcpConnections> out(static_cast<size_t>(size));
  std::vector<SocketAddress> addresses(out.size());
  for (int32_t rank = 0; rank < size; ++rank) {
    TcpConnections& c = out[static_cast<size_t>(rank)];
    c.rank = rank;
    c.size = size;
    c.sockets.resize(rank == 0 ? out.size() : 1);
    if (rank == 0) continue;
    std::tie(out[0].sockets[static_cast<size_t>(rank)], c.sockets[0]) = tcp_pair();
    if (rank == size - 1) continue;
    c.listener = std::move(listen_in_range(resolve("127.0.0.1:0"), {}, 256)[0]);
    addresses[static_cast<size_t>(rank)] = address_of(c.listener);
  }
  for (TcpConnections& c : out) c.addresses = addresses;
  return out;
}

/// Returns the transports of `size` ranks.
inline std::vector<std::unique_ptr<muonrt::Transport>> over_tcp(int size) {
  std::vector<std::unique_ptr<muonrt::Transport>> out;
  for (muonrt::TcpConnections& c : tcp_connections(size))
    out.push_back(muonrt::make_tcp_transport_over(std::move(c)));
  return out;
}

}  // namespace transport_test
