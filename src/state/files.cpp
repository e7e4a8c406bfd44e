#include "state/files.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string_view>
#include <system_error>

#include "base/error.hpp"

namespace muonrt {

namespace {

constexpr mode_t kFolderMode = 0777, kFileMode = 0666;  // the process's umask removes permissions

[[noreturn]] void fail(const std::string& path, const char* what, int reason) {
  throw Error(Status::kIo,
              cat(path, ": cannot be ", what, ": ", std::generic_category().message(reason)));
}

int sync_and_close(Descriptor file) {
  const int reason = fsync(file.fd()) == 0 ? 0 : errno;
  return close(file.release()) == 0 || reason != 0 ? reason : errno;
}

Descriptor open_file(const std::string& path, int flags) {
  return Descriptor([&] { return open(path.c_str(), flags | O_CLOEXEC, kFileMode); });
}

/// Reads the properties of a file. Returns false if the file does not exist.
bool examine(const std::string& path, struct stat& out) {
  if (stat(path.c_str(), &out) == 0) return true;
  if (errno != ENOENT) fail(path, "examined", errno);
  return false;
}

/// Removes the read permission of users without write permission, because a user who can open the
/// file can also lock it.
void hide_from_readers(int file) {
  struct stat info;
  if (fstat(file, &info) != 0) return;
  mode_t mode = info.st_mode & 07777;
  for (const mode_t who : {mode_t{S_IRWXG}, mode_t{S_IRWXO}})
    if ((mode & who & (S_IWGRP | S_IWOTH)) == 0) mode &= ~who;
  if (mode != (info.st_mode & 07777))
    fchmod(file, mode);  // only the user to whom the file belongs
                         // may do this
}

}  // namespace

void Files::make_folder(const std::string& path) {
  before("make_folder", path);
  const auto slash = path.find_last_of('/', path.find_last_not_of('/'));
  const std::string parent = slash == path.npos ? "." : path.substr(0, slash + 1);
  int reason = mkdir(path.c_str(), kFolderMode) == 0 ? 0 : errno;
  if (reason == ENOENT && parent != "." && parent.find_first_not_of('/') != parent.npos) {
    make_folder(parent);
    reason = mkdir(path.c_str(), kFolderMode) == 0 ? 0 : errno;
  }
  if (reason == 0) return sync_folder(parent);
  struct stat info;
  if (reason == EEXIST && stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return;
  fail(path, "made", reason);
}

FileLock Files::lock(const std::string& path) {
  before("lock", path);
  Descriptor file = open_file(path, O_RDWR | O_CREAT | O_NOFOLLOW);
  if (!file) fail(path, "opened", errno);
  hide_from_readers(file.fd());
  if (flock(file.fd(), LOCK_EX | LOCK_NB) == 0) return FileLock(std::move(file));
  MUONRT_REQUIRE(errno != EWOULDBLOCK, Status::kIo, path,
                 ": the file is locked, because another save into this folder is in progress; wait "
                 "until it ends, or save into another folder");
  return FileLock();  // the file system does not support locks
}

bool Files::exists(const std::string& path) {
  before("exists", path);
  struct stat info;
  return examine(path, info);
}

std::vector<std::string> Files::list(const std::string& folder) {
  before("list", folder);
  // Does not use std::filesystem, because its iterator terminates the process if an allocation
  // fails.
  const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir(folder.c_str()), closedir);
  if (!open) fail(folder, "read", errno);
  std::vector<std::string> out;
  for (;;) {
    errno = 0;
    const dirent* const entry = readdir(open.get());
    if (!entry && errno != 0) fail(folder, "read", errno);
    if (!entry) return out;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") out.emplace_back(name);
  }
}

int64_t Files::size(const std::string& path) {
  before("size", path);
  struct stat info;
  return examine(path, info) ? info.st_size : -1;
}

void Files::rename(const std::string& from, const std::string& to) {
  before("rename", to);
  if (std::rename(from.c_str(), to.c_str()) != 0) fail(to, "written", errno);
}

void Files::sync_folder(const std::string& path) {
  before("sync_folder", path);
  Descriptor file = open_file(path, O_RDONLY | O_DIRECTORY);
  if (!file && errno == EACCES) return;  // the process may write to the folder but not read it
  if (!file) fail(path, "opened", errno);
  if (const int reason = sync_and_close(std::move(file))) fail(path, "written", reason);
}

void Files::remove(const std::string& path) noexcept {
  try {
    before("remove", path);
    unlink(path.c_str());
  } catch (...) {
  }
}

// Closing the file would not release the lock while a child that was created without fork handlers
// (vfork, clone) has a copy of the descriptor.
FileLock::~FileLock() {
  if (file_) flock(file_.fd(), LOCK_UN);
}

OutFile::OutFile(Files& files, std::string path)
    : files_(files), path_(std::move(path)), process_(getpid()) {
  files_.before("create", path_);
  file_ = open_file(path_, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
  if (!file_) fail(path_, "made", errno);
}

OutFile::~OutFile() {
  if (!path_.empty() && process_ == getpid()) files_.remove(path_);
}

void OutFile::write(const void* data, int64_t bytes, int64_t at) {
  files_.before("write", path_);
  for (int64_t done = 0; done < bytes;) {
    const ssize_t wrote = pwrite(file_.fd(), static_cast<const char*>(data) + done,
                                 static_cast<size_t>(bytes - done), at + done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) fail(path_, "written", wrote < 0 ? errno : ENOSPC);
    done += wrote;
  }
}

void OutFile::finish() {
  files_.before("sync", path_);
  if (const int reason = sync_and_close(std::move(file_))) fail(path_, "written", reason);
}

void OutFile::publish(const std::string& path) {
  files_.rename(path_, path);
  path_.clear();
}

}  // namespace muonrt
