#include "comm/run_folder.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <vector>

namespace muonrt {

namespace {

/// The same folder whatever directory the process changes to.
std::string absolute(const std::string& path) {
  const std::unique_ptr<char, decltype(&free)> whole(realpath(path.c_str(), nullptr), free);
  if (whole) return whole.get();
  if (path.front() == '/') return path;  // not there, perhaps not yet
  std::error_code error;
  const auto here = std::filesystem::current_path(error);
  MUONRT_REQUIRE(!error, Status::kIo, "shared folder: the current directory is not known (",
                 error.message(), "); pass a path that begins with '/'");
  return (here / path).string();
}

// Who may write to the folder may put links and pipes there.
constexpr int kOpen = O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;

std::string lock_name(int32_t of) { return cat("alive.", of); }

}  // namespace

RunFolder::RunFolder(const std::string& path, const std::string& run_id, int rank)
    : folder_(cat(absolute(path), '/', run_id)), rank_(rank) {}

void RunFolder::make() {
  if (mkdir(folder_.c_str(), 0700) == 0) return;
  MUONRT_REQUIRE(errno != EEXIST, Status::kInvalidState, "shared folder: ", folder_,
                 " is there already (an earlier run, or a second rank 0); give every run an id "
                 "of its own");
  throw Error(Status::kIo, cat("shared folder: ", folder_, " cannot be made (", errno_text(errno),
                               "); pass a folder that exists and may be "
                               "written to"));
}

bool RunFolder::is_there() const { return access(folder_.c_str(), F_OK) == 0; }

void RunFolder::require_own() {
  // A file's owner and not this process's user, which a file system may map to another.
  std::string draft;
  const Socket file = create_draft(draft);
  remove(draft);
  struct stat mine {
  }, theirs{};
  if (fstat(file.fd(), &mine) != 0) throw_io("looked at", draft);
  if (lstat(folder_.c_str(), &theirs) != 0) throw_io("looked at", "");
  MUONRT_REQUIRE(S_ISDIR(theirs.st_mode) && theirs.st_uid == mine.st_uid, Status::kInvalidState,
                 "shared folder: ", folder_, " belongs to user ", theirs.st_uid,
                 " (this process's files to user ", mine.st_uid,
                 "), who could pose as rank 0; run all ranks as one user, or give them a secret");
}

bool RunFolder::exists(const std::string& name) const {
  return access(in(name).c_str(), F_OK) == 0;
}

void RunFolder::throw_io(const char* what, const std::string& name) const {
  const int error = errno;
  throw Error(Status::kIo, cat("shared folder: ", in(name), " cannot be ", what, " (",
                               errno_text(error), "); look at the file system"));
}

Socket RunFolder::create_draft(std::string& name) {
  {
    const std::lock_guard lock(mutex_);
    name = cat("t.", rank_, '.', drafts_++);
  }
  Socket out(open(in(name).c_str(), O_WRONLY | O_CREAT | O_EXCL | kOpen, 0600));
  if (!out) throw_io("created", name);
  return out;
}

bool RunFolder::write(const std::string& name, const void* data, int64_t bytes, bool keep) {
  std::string draft;
  Socket file = create_draft(draft);
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t n = ::write(file.fd(), static_cast<const char*>(data) + done,
                              static_cast<size_t>(bytes - done));
    if (n < 0 && errno != EINTR) throw_io("written", draft);
    if (n > 0) done += n;
  }
  // Other machines may see all of it once it is closed, and not before.
  if (close(file.release()) != 0) throw_io("written", draft);
  if (!keep) {
    if (rename(in(draft).c_str(), in(name).c_str()) != 0) throw_io("written", name);
    return true;
  }
  const bool first = link(in(draft).c_str(), in(name).c_str()) == 0;
  const int error = errno;
  remove(draft);
  errno = error;
  if (!first && error != EEXIST) throw_io("written", name);
  return first;
}

bool RunFolder::read(const std::string& name, std::string& content, int64_t most) const {
  const Socket file(open(in(name).c_str(), O_RDONLY | kOpen));
  if (!file) {
    if (errno == ENOENT) return false;
    throw_io("opened", name);
  }
  struct stat about {};
  if (fstat(file.fd(), &about) != 0) throw_io("read", name);
  MUONRT_REQUIRE(S_ISREG(about.st_mode), Status::kCorrupt, "shared folder: ", in(name),
                 " is no file; look who writes to the folder");
  MUONRT_REQUIRE(about.st_size <= most, Status::kCorrupt, "shared folder: ", in(name), " has ",
                 about.st_size, " bytes (", most,
                 " at most); look who writes to the folder, and use one version of muonrt on all "
                 "ranks");
  content.resize(static_cast<size_t>(about.st_size));
  size_t done = 0;
  while (done < content.size()) {
    const ssize_t n = ::read(file.fd(), content.data() + done, content.size() - done);
    MUONRT_REQUIRE(n != 0, Status::kIo, "shared folder: ", in(name), " ends after ", done, " of ",
                   content.size(), " bytes; look at the file system");
    if (n < 0 && errno != EINTR) throw_io("read", name);
    if (n > 0) done += static_cast<size_t>(n);
  }
  return true;
}

void RunFolder::remove(const std::string& name) const noexcept { unlink(in(name).c_str()); }

void RunFolder::remove_all() const {
  std::vector<std::string> names;
  if (DIR* const folder = opendir(folder_.c_str())) {
    while (const dirent* entry = readdir(folder)) names.emplace_back(entry->d_name);
    closedir(folder);
  }
  for (const std::string& name : names) {
    if (name != "." && name != "..") remove(name);
  }
  rmdir(folder_.c_str());
}

bool RunFolder::take_lock() {
  if (!alive_) alive_ = Socket(open(in(lock_name(rank_)).c_str(), O_RDWR | O_CREAT | kOpen, 0600));
  struct flock whole {};
  whole.l_type = F_WRLCK;
  return alive_ && fcntl(alive_.fd(), F_OFD_SETLK, &whole) == 0;
}

RunFolder::Lock RunFolder::lock_of(int32_t rank) const {
  const Socket file(open(in(lock_name(rank)).c_str(), O_RDWR | kOpen));
  if (!file) return errno == ENOENT ? Lock::kFree : Lock::kUnknown;
  struct flock whole {};
  whole.l_type = F_WRLCK;
  if (fcntl(file.fd(), F_OFD_GETLK, &whole) != 0) return Lock::kUnknown;
  return whole.l_type == F_UNLCK ? Lock::kFree : Lock::kHeld;
}

}  // namespace muonrt
