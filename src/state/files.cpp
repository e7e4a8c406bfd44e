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

constexpr mode_t kFolderMode = 0777, kFileMode = 0666;  // less the process' mask

[[noreturn]] void fail(const std::string& path, const char* what, int reason) {
  throw Error(Status::kIo,
              cat(path, ": cannot be ", what, ": ", std::generic_category().message(reason)));
}

int sync_and_close(int file) {
  const int reason = fsync(file) == 0 ? 0 : errno;
  return close(file) == 0 || reason != 0 ? reason : errno;
}

}  // namespace

void Files::make_folder(const std::string& path) {
  before("make_folder", path);
  if (mkdir(path.c_str(), kFolderMode) == 0) {
    const auto parent = path.find_last_of('/', path.find_last_not_of('/'));
    return sync_folder(parent == path.npos ? "." : path.substr(0, parent + 1));
  }
  const int reason = errno;
  struct stat info;
  if (reason == EEXIST && stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode)) return;
  fail(path, "made", reason);
}

FileLock Files::lock(const std::string& path) {
  before("lock", path);
  const int file = open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, kFileMode);
  if (file < 0) fail(path, "opened", errno);
  FileLock out(file);
  if (flock(file, LOCK_EX | LOCK_NB) == 0) return out;
  MUONRT_REQUIRE(errno != EWOULDBLOCK, Status::kIo, path,
                 ": it is locked (another save into this folder is under way); wait for it, or "
                 "save into a folder of your own");
  return FileLock();  // the file system has none
}

bool Files::exists(const std::string& path) {
  before("exists", path);
  struct stat info;
  return stat(path.c_str(), &info) == 0;
}

std::vector<std::string> Files::list(const std::string& folder) {
  before("list", folder);
  // Not std::filesystem, whose iterator ends the process where there is no memory.
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
  return stat(path.c_str(), &info) == 0 ? info.st_size : -1;
}

void Files::rename(const std::string& from, const std::string& to) {
  before("rename", to);
  if (std::rename(from.c_str(), to.c_str()) != 0) fail(to, "written", errno);
}

void Files::sync_folder(const std::string& path) {
  before("sync_folder", path);
  const int file = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (file < 0 && errno == EACCES) return;  // it may be written, but not read
  if (file < 0) fail(path, "opened", errno);
  if (const int reason = sync_and_close(file)) fail(path, "written", reason);
}

void Files::remove(const std::string& path) noexcept {
  try {
    before("remove", path);
    unlink(path.c_str());
  } catch (...) {
  }
}

FileLock::~FileLock() {
  if (file_ >= 0) close(file_);
}

OutFile::OutFile(Files& files, std::string path) : files_(files), path_(std::move(path)) {
  files_.before("create", path_);
  file_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, kFileMode);
  if (file_ < 0) fail(path_, "made", errno);
}

OutFile::~OutFile() {
  if (file_ >= 0) close(file_);
  if (!path_.empty()) files_.remove(path_);
}

void OutFile::write(const void* data, int64_t bytes, int64_t at) {
  files_.before("write", path_);
  for (int64_t done = 0; done < bytes;) {
    const ssize_t wrote = pwrite(file_, static_cast<const char*>(data) + done,
                                 static_cast<size_t>(bytes - done), at + done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) fail(path_, "written", wrote < 0 ? errno : ENOSPC);
    done += wrote;
  }
}

void OutFile::finish() {
  files_.before("sync", path_);
  const int file = file_;
  file_ = -1;
  if (const int reason = sync_and_close(file)) fail(path_, "written", reason);
}

void OutFile::publish(const std::string& path) {
  files_.rename(path_, path);
  path_.clear();
}

}  // namespace muonrt
