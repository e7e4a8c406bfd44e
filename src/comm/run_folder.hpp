#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "comm/socket.hpp"

namespace muonrt {

/// The folder of one run, and the files in it. Errors of all: IO, by the file's name. Threads: any,
/// but for the lock.
class RunFolder {
 public:
  /// @param path  of this moment's current directory, if it is relative.
  RunFolder(const std::string& path, const std::string& run_id, int rank);

  const std::string& path() const { return folder_; }
  /// Rank 0, with access for its user alone. Errors: INVALID_STATE if it is there already.
  void make();
  bool is_there() const;
  /// Errors: INVALID_STATE if the folder is another user's than the files of this process are.
  void require_own();

  bool exists(const std::string& name) const;
  /// Whole or not at all. @param keep  where one of that name is there, that one stays.
  /// @return  whether this one is there now.
  bool write(const std::string& name, const void* data, int64_t bytes, bool keep = false);
  /// False if there is none. Errors: CORRUPT if it is no file, or longer than `most`.
  bool read(const std::string& name, std::string& content, int64_t most = INT64_MAX) const;
  void remove(const std::string& name) const noexcept;
  /// All files, and the folder.
  void remove_all() const;

  // A lock that ends with its process, whatever ends that. A file system may have none, or show
  // each machine its own alone: to be trusted is the lock of a peer that has been seen.
  /// Whether this rank has its lock now.
  bool take_lock();
  void drop_lock() { alive_ = Socket(); }
  /// What is seen of a rank's lock. An error (no file to spare, a file system that fails) is no
  /// death: then it is neither held nor free.
  enum class Lock { kHeld, kFree, kUnknown };
  Lock lock_of(int32_t rank) const;
  bool has_lock(int32_t rank) const { return lock_of(rank) == Lock::kHeld; }
  bool lacks_lock(int32_t rank) const { return lock_of(rank) == Lock::kFree; }

 private:
  std::string in(const std::string& name) const { return folder_ + '/' + name; }
  [[noreturn]] void throw_io(const char* what, const std::string& name) const;
  Socket create_draft(std::string& name);

  const std::string folder_;
  const int rank_;
  Socket alive_;  // the file of this rank's lock
  std::mutex mutex_;
  int64_t drafts_ = 0;
};

}  // namespace muonrt
