#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/descriptor.hpp"

namespace muonrt {

/// Holds the lock of a file, or no lock. The lock is released when this object is destroyed or the
/// process exits, even if forked children still run.
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

/// The file system operations of a save. A function that fails throws IO, with the file and the
/// reason.
class Files {
 public:
  virtual ~Files() = default;

  /// Creates a folder and its parents if they do not exist. For each new folder, also syncs its
  /// parent.
  void make_folder(const std::string& path);
  /// Locks the file until the returned object is destroyed. Creates the file if it does not exist.
  /// Throws IO if another process holds the lock. On a file system without locks, always succeeds.
  /// Users without write permission cannot open the file, so they cannot lock it.
  FileLock lock(const std::string& path);
  /// Returns true if the file exists. Throws IO if the file cannot be examined.
  bool exists(const std::string& path);
  /// Returns the names of the files in a folder.
  std::vector<std::string> list(const std::string& folder);
  /// Returns the size of a file in bytes, or -1 if it does not exist.
  int64_t size(const std::string& path);
  void rename(const std::string& from, const std::string& to);
  void sync_folder(const std::string& path);
  /// Removes a file if it exists. Errors are ignored.
  void remove(const std::string& path) noexcept;

 protected:
  /// Called before each of these operations, and before each write and sync of a file. A test can
  /// override it to throw an error, with which the operation then fails.
  virtual void before(const char* /*operation*/, const std::string& /*path*/) {}

 private:
  friend class OutFile;
};

/// A new file. The destructor removes the file unless it was published. A forked child never
/// removes it.
class OutFile {
 public:
  OutFile(Files& files, std::string path);
  ~OutFile();
  OutFile(const OutFile&) = delete;
  OutFile& operator=(const OutFile&) = delete;

  void write(const void* data, int64_t bytes, int64_t at);
  /// Writes all data to disk (fsync) and closes the file.
  void finish();
  /// Renames the file, so that the destructor does not remove it. Call this function after
  /// finish().
  void publish(const std::string& path);

 private:
  Files& files_;
  std::string path_;
  Descriptor file_;
  const pid_t process_;
};

}  // namespace muonrt
