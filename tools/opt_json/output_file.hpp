#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "opt_json/temporary_file.hpp"

namespace muonrt::tool {

/// A file that is written whole or not at all: all of it to a temporary file beside it, then the
/// name. A run that ends before the second, or that has another file still to write, leaves what
/// was there before. A symbolic link stays one: its target is the file. A file that is replaced
/// keeps its permissions.
class OutputFile {
 public:
  /// Throws std::runtime_error that names the file, as every function does.
  explicit OutputFile(std::string path);

  const std::string& path() const { return path_; }
  /// The file itself, behind links.
  const std::filesystem::path& target() const { return target_; }
  void write(const void* data, size_t bytes);
  /// Puts others in place of the first bytes.
  void rewrite(const void* data, size_t bytes);
  /// The temporary file is whole and on disk.
  void finish();
  /// The file takes its name; after `finish`.
  void publish();
  /// Where it lies until then; after `finish`.
  const std::string& temporary() const { return temporary_->path(); }
  /// Leaves it there: whoever calls gives it its name.
  void release();

 private:
  [[noreturn]] void fail() const;

  std::string path_;
  std::filesystem::path target_;
  std::optional<TemporaryFile> temporary_;  // until it is published
};

/// The absolute path of the file itself, behind links, also where nothing is there yet.
std::filesystem::path output_target(const std::string& path);

/// Writes `content` to `path` through an OutputFile.
void write_text_file(const std::string& path, const std::string& content);

/// Whether what was printed is with whoever reads it; not on a full disk, or where it was closed.
bool flush_output();

/// A file of the command line.
struct NamedFile {
  std::string option, path;
  std::string replaces = {};  // of an output: the option of the input that it may take the place of
};

/// Throws std::runtime_error unless OutputFile can write `path`: its folder takes a file, and what
/// is there now, if anything, is a regular one.
void require_writable(const std::string& path);

/// The same for all outputs of a command, each of which must be another file than the other outputs
/// and than every input but the one that it replaces, whatever they are called.
void require_writable(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs);

}  // namespace muonrt::tool
