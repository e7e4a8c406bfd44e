#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "comm/tcp/rendezvous.hpp"

namespace muonrt {

/// The configuration of a rendezvous in a folder that all ranks can access. The ranks then
/// communicate over TCP.
struct FolderRendezvous {
  int rank = 0, size = 1;
  std::string path;    // an existing folder
  std::string run_id;  // names this run: 1 to 64 letters, digits, '.', '-', '_'
  int32_t version = 0;
  std::string secret{};  // equal on all ranks; at least kSecretBytes bytes, or empty
  PortRange ports = {};  // at which this rank listens
  std::function<void()> check_interrupt = {};  // as in TcpRendezvous
};

/// Rank 0 listens at free ports of all addresses of its machine. It writes these addresses and a
/// random number to the file `path`/`run_id`, and deletes the file after the rendezvous. The other
/// ranks read the file and connect to rank 0. The file has an HMAC over its content and the run id;
/// without a secret the key is empty, so the HMAC is only a checksum. Over TCP the ranks prove that
/// they know both the secret and the random number, so ranks of different runs cannot connect, even
/// without a secret.
/// Errors: those of accept_all_ranks and connect_to_rank_0; INVALID_ARGUMENT; IO; on rank 0
/// INVALID_STATE if the file already exists; on the others COMM if the file was written with
/// another secret, INVALID_STATE if it belongs to another user and there is no secret, CORRUPT if
/// rank 0 did not write it.
TcpConnections rendezvous_in_folder(const FolderRendezvous& rendezvous, Deadline deadline);

}  // namespace muonrt
