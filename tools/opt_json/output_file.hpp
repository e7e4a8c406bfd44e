#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace muonrt::tool {

/// Resolves all links in `path`, and returns the absolute path of the file, which need not exist.
std::filesystem::path output_target(const std::string& path);

/// Writes `content` to a temporary file in the same folder, and then renames this file. If the
/// process exits before the rename, the old file stays intact. If `path` is a symbolic link,
/// replaces the linked file. The new file gets the permissions of the old one. Throws a
/// std::runtime_error that names the file.
void write_text_file(const std::string& path, const std::string& content);

/// Flushes standard output. If this fails, for example because the disk is full, returns false.
bool flush_output();

/// A file on the command line and the option that names it.
struct NamedFile {
  std::string option, path;
};

/// Checks that write_text_file can write every output: its folder must be writable, and an existing
/// file must be a regular file. An output must not be the same file as another output or an input,
/// even through links. If one of these conditions is not met, throws std::runtime_error.
void require_writable(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs);

}  // namespace muonrt::tool
