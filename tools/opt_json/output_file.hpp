#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace muonrt::tool {

/// The absolute path of the file itself, behind links, also where nothing is there yet.
std::filesystem::path output_target(const std::string& path);

/// Writes `content` to a temporary file beside `path`, which then takes the name: a run that ends
/// before leaves what was there. A symbolic link stays one: its target is the file. A file that is
/// replaced keeps its permissions. Throws std::runtime_error that names the file.
void write_text_file(const std::string& path, const std::string& content);

/// Whether what was printed is with whoever reads it; not on a full disk, or where it was closed.
bool flush_output();

/// A file of the command line.
struct NamedFile {
  std::string option, path;
};

/// Throws std::runtime_error unless write_text_file can write every output: its folder takes a
/// file, and what is there now, if anything, is a regular one. Each must be another file than the
/// other outputs and than every input, whatever they are called.
void require_writable(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs);

}  // namespace muonrt::tool
