#pragma once

#include <memory>

#include "comm/tcp/folder_rendezvous.hpp"
#include "comm/tcp/mailbox.hpp"
#include "comm/tcp/rendezvous.hpp"

namespace muonrt {

/// A post over TCP connections to rank 0, which hands messages on. Collective over all ranks.
/// When the connection of a rank ends, its peers' waits for it end with COMM; when that of rank 0
/// does, all do. Rank 0's destructor delivers what has been sent, for two seconds at most.
/// Errors: those of accept_all_ranks and connect_to_rank_0.
std::shared_ptr<Mailbox> make_tcp_mailbox(const TcpRendezvous& meeting, int64_t timeout_ms);
/// The same for ranks that meet in a folder. Errors: those of rendezvous_in_folder.
std::shared_ptr<Mailbox> make_folder_mailbox(const FolderRendezvous& meeting, int64_t timeout_ms);

/// The same over connections that are there.
/// @param connections  rank 0: of all ranks, the first empty; else the one to rank 0.
std::shared_ptr<Mailbox> make_mailbox_over(int rank, int size, std::vector<Socket> connections);

}  // namespace muonrt
