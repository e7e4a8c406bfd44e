#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "comm/tcp/socket.hpp"

namespace muonrt {

/// Ranks that find each other through a folder that all of them reach, and then talk over TCP.
struct FolderRendezvous {
  int rank = 0, size = 1;
  std::string path;    // an existing folder
  std::string run_id;  // names this run: 1 to 64 letters, digits, '.', '-', '_'
  int32_t version = 0;
  std::string secret{};  // the same on all ranks, at least kSecretBytes; or empty
};

/// Rank 0 listens at free ports of all addresses of its machine, and leaves these with a number
/// drawn for this meeting in the file `path`/`run_id`, until the meeting has ended. The others read
/// it and come. The file carries an HMAC over all it says and the run's id; without a secret its
/// key is empty, and it serves as a checksum. Secret and number together are what the ranks prove
/// over TCP that they know: the number keeps meetings apart, also those without a secret.
/// @return  rank 0: the connections of all others, by rank; the others: the one to rank 0.
/// Errors: those of accept_all_ranks and connect_to_rank_0; INVALID_ARGUMENT; IO; on rank 0
/// INVALID_STATE if the file is there already; on the others COMM if it was written with another
/// secret, INVALID_STATE if it is another user's and there is no secret, CORRUPT if it is none of
/// rank 0.
std::vector<Socket> rendezvous_in_folder(const FolderRendezvous& rendezvous, Deadline deadline);

}  // namespace muonrt
