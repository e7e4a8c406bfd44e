#pragma once

#include <memory>
#include <string>

#include "comm/folder_meeting.hpp"
#include "comm/post.hpp"

namespace muonrt {

/// A post whose messages are files in `path`/`run_id`, renamed into place when they are whole. A
/// peer that dies is noticed where its lock can be seen, else by the deadline alone. The last rank
/// to leave removes the files. Errors: INVALID_ARGUMENT; those of meet_in.
std::shared_ptr<Post> make_folder_post(const FolderMeeting& meeting, int64_t timeout_ms);

}  // namespace muonrt
