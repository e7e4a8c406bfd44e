#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace muonrt::tool {

/// Returns the absolute path of the file that `path` names after all links are resolved. The file
/// does not have to exist yet.
std::filesystem::path output_target(const std::string& path);

/// Writes `content` to a temporary file in the same folder and then renames it, so that the old
/// file stays intact if the process ends earlier. If `path` is a symbolic link, the linked file is
/// replaced. A replaced file keeps its permissions. Throws a std::runtime_error that names the
/// file.
void write_text_file(const std::string& path, const std::string& content);

/// Flushes standard output. Returns false if it cannot be written, for example because the disk is
/// full.
bool flush_output();

/// A file on the command line and the option that names it.
struct NamedFile {
  std::string option, path;
};

/// Throws std::runtime_error unless write_text_file can write every output: its folder must be
/// writable, and an existing file must be a regular one. An output must not be the same file as a
/// different output or an input, even through links.
void require_writable(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs);

}  // namespace muonrt::tool
