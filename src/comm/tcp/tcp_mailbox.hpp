#pragma once

#include <memory>

#include "comm/tcp/folder_rendezvous.hpp"
#include "comm/tcp/mailbox.hpp"
#include "comm/tcp/rendezvous.hpp"

namespace muonrt {

/// Creates a mailbox over TCP connections to rank 0, which forwards messages. Collective over all
/// ranks. If the connection of a rank ends, its peers' waits for it end with COMM; if rank 0 ends,
/// all waits do. Rank 0's destructor delivers the messages that were sent, for at most two seconds.
/// Errors: those of accept_all_ranks and connect_to_rank_0.
std::shared_ptr<Mailbox> make_tcp_mailbox(const TcpRendezvous& rendezvous, int64_t timeout_ms);
/// The same with a rendezvous in a folder. Errors: those of rendezvous_in_folder.
std::shared_ptr<Mailbox> make_folder_mailbox(const FolderRendezvous& rendezvous,
                                             int64_t timeout_ms);

/// Creates a mailbox over existing connections.
/// @param connections  rank 0: the connections of all ranks, of which the first is empty; other
///     ranks: the connection to rank 0.
std::shared_ptr<Mailbox> make_mailbox_over(int rank, int size, std::vector<Socket> connections);

}  // namespace muonrt
