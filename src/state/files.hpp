#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/descriptor.hpp"

namespace muonrt {

/// Holds a file locked, or nothing. The lock ends with this object or with the process, whatever
/// children the process has forked meanwhile.
class FileLock {
 public:
  FileLock() = default;
  explicit FileLock(Descriptor file) : file_(std::move(file)) {}
  ~FileLock();
  FileLock(FileLock&&) noexcept = default;
  FileLock& operator=(FileLock&&) noexcept = default;

 private:
  Descriptor file_;
};

/// What saving asks of a file system. Errors of all: IO, naming the file and the reason.
class Files {
 public:
  virtual ~Files() = default;

  /// It may be there. One that is made is on disk.
  void make_folder(const std::string& path);
  /// Until the lock goes, nobody else gets it. Where the file system has no locks everybody does.
  /// Only users who may write the file can open it, and so lock it.
  FileLock lock(const std::string& path);
  /// Errors: a file that cannot be examined is not absent.
  bool exists(const std::string& path);
  /// Names in a folder.
  std::vector<std::string> list(const std::string& folder);
  /// Of a file; -1 where there is none.
  int64_t size(const std::string& path);
  void rename(const std::string& from, const std::string& to);
  void sync_folder(const std::string& path);
  /// It need not be there, and what goes wrong is not told.
  void remove(const std::string& path) noexcept;

 protected:
  /// Called before each of them, and before each write and sync of a file; what it throws is what
  /// went wrong there. For tests.
  virtual void before(const char* /*operation*/, const std::string& /*path*/) {}

 private:
  friend class OutFile;
};

/// A new file, removed again unless it is kept. A forked child never removes it.
class OutFile {
 public:
  OutFile(Files& files, std::string path);
  ~OutFile();
  OutFile(const OutFile&) = delete;
  OutFile& operator=(const OutFile&) = delete;

  void write(const void* data, int64_t bytes, int64_t at);
  /// On disk, and closed.
  void finish();
  /// It takes another name; after `finish`. It is removed no longer.
  void publish(const std::string& path);

 private:
  Files& files_;
  std::string path_;
  Descriptor file_;
  const pid_t process_;
};

}  // namespace muonrt
