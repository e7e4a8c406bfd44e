#pragma once

#include <memory>

#include "comm/tcp/folder_rendezvous.hpp"
#include "comm/tcp/rendezvous.hpp"
#include "comm/transport.hpp"

namespace muonrt {

/// Creates a transport over TCP. Collective over all ranks. Two ranks connect when they exchange
/// for the first time. If the connection of a rank ends, its peers' waits for it end with COMM; if
/// that of rank 0 ends without a goodbye, all waits do. Errors: those of accept_all_ranks and
/// connect_to_rank_0.
std::unique_ptr<Transport> make_tcp_transport(const TcpRendezvous& rendezvous, int64_t timeout_ms);
/// The same with a rendezvous in a folder. Errors: those of rendezvous_in_folder.
std::unique_ptr<Transport> make_folder_transport(const FolderRendezvous& rendezvous,
                                                 int64_t timeout_ms);
/// The same after a rendezvous.
std::unique_ptr<Transport> make_tcp_transport_over(TcpConnections connections);

}  // namespace muonrt
