#pragma once

#include <memory>
#include <string>

#include "comm/post.hpp"

namespace muonrt {

/// Ranks that share a folder, as processes of one machine or over a network file system.
struct FolderMeeting {
  int rank = 0, size = 1;
  std::string path;    // an existing folder
  std::string run_id;  // names this run: 1 to 64 letters, digits, '.', '-', '_'; not used before
  int32_t version = 0;
};

/// A post whose messages are files in `path`/`run_id`, renamed into place when they are whole. A
/// peer that dies is noticed by the deadline alone. The last rank to leave removes the files.
/// Errors: INVALID_ARGUMENT; IO; INVALID_STATE if the run's folder or this rank's place in it is
/// there already (an earlier run, or two processes of one rank); MISMATCH of sizes or versions;
/// TIMEOUT naming who is missing.
std::shared_ptr<Post> make_folder_post(const FolderMeeting& meeting, int64_t timeout_ms);

}  // namespace muonrt
