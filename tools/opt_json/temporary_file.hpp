#pragma once

#include <sys/types.h>

#include <cstdio>
#include <filesystem>
#include <string>

namespace muonrt::tool {

/// A new file of a random name. It is never one that was there before, nor behind a link. It goes
/// with this object, and with a process that a signal ends: while there is any, SIGHUP, SIGINT,
/// SIGPIPE, SIGQUIT, SIGTERM and SIGXFSZ remove all of them, then do what they did before.
/// (Only meanwhile: oneDNN 2.6 does not survive a handler on a thread that it computes on.)
class TemporaryFile {
 public:
  /// What its name begins with.
  static constexpr const char* kPrefix = "muonrt.tmp.";

  /// @param mode  as open(2) takes it: without the bits of the process' mask.
  /// Where the folder takes no file, `file` is null and errno says why.
  TemporaryFile(const std::filesystem::path& folder, mode_t mode);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  /// Null once it is closed.
  std::FILE* file() const { return file_; }
  /// It is on disk. These return whether it went well, else errno says why.
  bool close();
  bool rename(const std::filesystem::path& target);
  const std::string& path() const;
  /// It stays, whatever becomes of this object and the process.
  void release() { forget(); }

 private:
  struct Name;
  void forget();

  Name* name_ = nullptr;  // null: there is no file any more
  std::FILE* file_ = nullptr;
};

}  // namespace muonrt::tool
