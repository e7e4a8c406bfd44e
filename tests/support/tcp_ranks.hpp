#pragma once

#include <future>
#include <memory>
#include <vector>

#include "comm/tcp/rendezvous.hpp"
#include "support/thread_ranks.hpp"

// Ranks that use TCP, all in one process.
namespace transport_test {

/// Connects `size` ranks with a rendezvous, and returns the connections of each rank.
inline std::vector<muonrt::TcpConnections> tcp_connections(int size,
                                                           const std::string& interface = {}) {
  std::vector<muonrt::TcpConnections> out(static_cast<size_t>(size));
  std::promise<std::string> listening;
  const auto address = listening.get_future().share();
  require_none(text_of(on_ranks(size, [&](int rank) {
    muonrt::Rendezvous m{rank, size, "127.0.0.1:0", "a secret of this test"};
    m.interface = interface;
    m.listening = [&](const std::string& text) { listening.set_value(text); };
    if (rank > 0) m.address = address.get();
    out[static_cast<size_t>(rank)] =
        muonrt::rendezvous_at_address(m, muonrt::Deadline::in_ms(60'000));
  })));
  return out;
}

/// Returns the transports of `size` ranks.
inline std::vector<std::unique_ptr<muonrt::Transport>> over_tcp(int size) {
  std::vector<std::unique_ptr<muonrt::Transport>> out;
  for (muonrt::TcpConnections& c : tcp_connections(size))
    out.push_back(muonrt::make_tcp_transport(std::move(c)));
  return out;
}

/// Receives 16 bytes from `peer`. Returns the error of the exchange.
inline std::optional<muonrt::Error> receive_error(muonrt::Transport& mine, int peer) {
  char data[16] = {};
  const muonrt::ReceiveFrom receive{peer, data, sizeof data};
  return error_of([&] { mine.exchange({}, {&receive, 1}); });
}

}  // namespace transport_test
