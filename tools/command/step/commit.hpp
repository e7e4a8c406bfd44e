#pragma once

#include <string>
#include <vector>

#include "opt_json/output_file.hpp"

namespace muonrt::tool {

/// Finished files take their names, all of them or none, whenever the process or the machine ends.
/// What is to come is first written beside `path`, as NAME.muonrt-intent; it goes when all is done,
/// and while it is there no other run does the same. Throws std::runtime_error that names the file.
void publish_together(const std::vector<OutputFile*>& files, const std::string& path);

/// Does what a run did not that ended in publish_together: all files get their names if all are
/// whole, else what has none is removed. Says so on standard error.
/// @param path  as of that run; it need not be there.
void recover_commit(const std::string& path);

}  // namespace muonrt::tool
