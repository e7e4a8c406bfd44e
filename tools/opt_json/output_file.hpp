#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace muonrt::tool {

/// The absolute path of the file that `path` names after all links, which need not exist yet.
std::filesystem::path output_target(const std::string& path);

/// Writes `content` to a temporary file in the same folder and then renames it, so that a run that
/// ends earlier leaves the old file. If `path` is a symbolic link, its target is replaced. A
/// replaced file keeps its permissions. Throws std::runtime_error that names the file.
void write_text_file(const std::string& path, const std::string& content);

/// Flushes standard output. Returns false if it could not be written, for example on a full disk.
bool flush_output();

/// A file on the command line, with its option.
struct NamedFile {
  std::string option, path;
};

/// Throws std::runtime_error unless write_text_file can write every output: its folder is writable,
/// and an existing file is a regular one. An output must not be the same file as another output or
/// an input, also through links.
void require_writable(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs);

}  // namespace muonrt::tool
