#include "command/output_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <utility>

#include "opt_json/output_file.hpp"
#include "opt_json/strict_json.hpp"

namespace muonrt::tool {

namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

// This file marks a folder as replaceable, and lists the folder's files.
constexpr const char* kMarker = "muonrt-output.json";
constexpr const char* kFormat = "muonrt output 2";
constexpr mode_t kFolderMode = 0777, kFileMode = 0666;

std::string reason() { return std::strerror(errno); }

std::string exchange_reason() {
  return errno == EINVAL ? "this file system cannot exchange two folders" : reason();
}

/// Returns the size, time and inode of every file in a folder and its subfolders, keyed by path.
Json files_of(const fs::path& folder) {
  constexpr int64_t kSecond = 1000000000;
  Json out = Json::object();
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_symlink() && entry.is_directory()) continue;
    struct stat s = {};
    lstat(entry.path().c_str(), &s);
    out[entry.path().lexically_relative(folder).string()] = {
        {"bytes", s.st_size},
        {"inode", s.st_ino},
        {"mtime_ns", s.st_mtim.tv_sec * kSecond + s.st_mtim.tv_nsec}};
  }
  return out;
}

std::string text_of(const Json& files) {
  return files.empty() ? "" : files.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// Returns a text that changes whenever a file in the folder changes. If the folder is empty or
/// missing, returns "".
std::string state_of(const fs::path& folder) {
  std::error_code none;
  if (!fs::exists(folder, none)) return "";
  return fs::is_directory(folder, none) ? text_of(files_of(folder)) : "no folder";
}

/// Returns the content of the file that marks a folder, or null if it is missing or invalid.
Json marker_of(const fs::path& folder) {
  try {
    const Json out = Json::parse(read_text(folder / kMarker), nullptr, false);
    return out.is_object() && out.value("format", "") == kFormat ? out : Json();
  } catch (const std::exception&) {
    return Json();
  }
}

void write_marker(const fs::path& folder) {
  const Json marker = {{"format", kFormat}, {"files", files_of(folder)}};
  write_text_file(folder / kMarker, marker.dump(1) + "\n");
}

/// Returns the text that identifies the run that has locked a file.
std::string run_of(const std::string& lock) {
  std::string out;
  std::getline(std::ifstream(lock), out);
  return out.empty() ? "unknown" : out;
}

/// Returns the process number, the host name and a random number, which together identify this run.
std::string this_run() {
  std::array<char, 256> host = {};
  gethostname(host.data(), host.size() - 1);
  return "process " + std::to_string(getpid()) + " on " + host.data() + ", run " +
         std::to_string(std::random_device()());
}

bool is_mount_point(const fs::path& folder) {
  struct stat own, parent;
  if (stat(folder.c_str(), &own) != 0 || stat(folder.parent_path().c_str(), &parent) != 0)
    return false;
  struct statx more = {};
  return own.st_dev != parent.st_dev || (statx(AT_FDCWD, folder.c_str(), 0, 0, &more) == 0 &&
                                         (more.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0);
}

bool has_name(int file, const fs::path& path) {
  struct stat own, named;
  return fstat(file, &own) == 0 && lstat(path.c_str(), &named) == 0 && own.st_ino == named.st_ino &&
         own.st_dev == named.st_dev;
}

bool swap_folders(const fs::path& a, const fs::path& b) {
  return renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
}

/// Flushes the directory entries of a folder to disk.
void sync_folder(const fs::path& folder) {
  const int file = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const bool synced = file >= 0 && fsync(file) == 0;
  const std::string why = reason();
  if (file >= 0) close(file);
  if (!synced) throw std::runtime_error(folder.string() + ": cannot be written: " + why);
}

}  // namespace

void OutputFolder::Lock::release() {
  if (file >= 0) close(std::exchange(file, -1));
}

std::string OutputFolder::work_path(const std::string& path) {
  std::string name = path;
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  return output_target(name).string() + ".muonrt-tmp";
}

OutputFolder::OutputFolder(std::string option, const std::string& path, bool replaces)
    : option_(std::move(option)), replaces_(replaces), run_(this_run()) {
  if (path.empty()) throw std::runtime_error(option_ + ": is empty; give the name of a folder");
  work_ = work_path(path);
  lock_path_ = work_ + ".lock";
  target_ = work_.substr(0, work_.rfind('.'));
  require_replaceable();
  const bool was_left = lock();
  owns_work_ = was_left;
  try {
    if (fs::exists(work_) && !was_left)
      fail(work_ + " already exists, but this command did not create it; remove it");
    fs::remove_all(work_);
    before_ = checked_state();
    if (mkdir(work_.c_str(), kFolderMode) != 0) fail(work_ + " cannot be written: " + reason());
    owns_work_ = true;
    if (!before_.empty()) try_exchange();
    struct stat old;
    if (!before_.empty() && stat(target_.c_str(), &old) == 0)
      static_cast<void>(chmod(work_.c_str(), old.st_mode & kFolderMode));
  } catch (const std::exception&) {
    discard();
    throw;
  }
}

OutputFolder::~OutputFolder() {
  if (owns_work_ && run_of(lock_path_) == run_) discard();
}

void OutputFolder::fail(const std::string& problem) const {
  throw std::runtime_error(option_ + ": " + problem);
}

/// Locks the folder. Throws if another run has the lock, or if the file system cannot lock files.
/// NFS can lock files, but not folders.
/// @return whether a killed run has left the lock file, and possibly the work folder.
bool OutputFolder::lock() {
  constexpr int kFlags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
  const auto open_with = [&](int flags) { return open(lock_path_.c_str(), flags, kFileMode); };
  lock_.file = open_with(kFlags | O_EXCL);
  const bool was_there = lock_.file < 0 && errno == EEXIST;
  if (was_there) lock_.file = open_with(kFlags);
  if (lock_.file < 0) fail(lock_path_ + " cannot be written: " + reason());
  const int file = lock_.file;
  const bool locked = flock(file, LOCK_EX | LOCK_NB) == 0;
  if ((!locked && errno == EWOULDBLOCK) || !has_name(file, lock_path_))
    fail(target_.string() + " is being written by another run (" + run_of(lock_path_) +
         "); wait for it, or give another folder");
  if (!locked && was_there)
    fail(lock_path_ + " belongs to another run (" + run_of(lock_path_) +
         "), and the file system cannot lock it, so that run may still write; remove it if that "
         "run has ended");
  // If the lock file is empty, the run that created it exited before it created a work folder.
  const bool was_left = was_there && fs::file_size(lock_path_) > 0;
  const bool written = pwrite(file, run_.data(), run_.size(), 0) == std::ssize(run_) &&
                       ftruncate(file, std::ssize(run_)) == 0;
  if (!written) {
    const std::string why = reason();
    if (!was_left) unlink(lock_path_.c_str());
    fail(lock_path_ + " cannot be written: " + why);
  }
  return was_left;
}

/// Throws if the target is not a folder, or if it cannot be exchanged with the work folder.
void OutputFolder::require_replaceable() const {
  const std::string name = target_.string();
  std::error_code error;
  const fs::file_status found = fs::status(target_, error);
  if (!fs::exists(found)) return;
  if (!fs::is_directory(found))
    fail(name + " is not a folder; pass a folder, or a name that does not exist yet");
  if (is_mount_point(target_))
    fail(name + " is a mount point, which cannot be replaced; give the name of a folder inside it");
}

/// Returns the state of the target. Throws unless the target is missing, is empty, or contains only
/// unchanged files that an OutputFolder wrote.
std::string OutputFolder::checked_state() const {
  std::error_code error;
  if (!fs::exists(target_, error)) return "";
  const auto refuse = [&](const std::string& file, const char* what) {
    fail(target_.string() + " contains '" + file + "'" + what +
         " and is left unchanged; give a new folder");
  };
  const Json marker = replaces_ ? marker_of(target_) : Json();
  if (marker.is_null()) {
    for (const auto& entry : fs::directory_iterator(target_))
      refuse(entry.path().filename().string(),
             replaces_ ? ", which this command did not write," : ",");
    return "";
  }
  const Json held = files_of(target_), known = marker.value("files", Json::object());
  for (const auto& [file, content] : held.items()) {
    if (file == kMarker) continue;
    const auto written = known.find(file);
    if (written == known.end()) refuse(file, ", which this command did not write,");
    if (*written != content) refuse(file, ", which has changed since this command wrote it,");
  }
  return text_of(held);
}

/// Removes the work folder, if there is one, and then the lock file. If this fails, the next run
/// with the same name removes both.
void OutputFolder::discard() noexcept {
  std::error_code error;
  if (owns_work_) fs::remove_all(work_, error);
  if (!error) unlink(lock_path_.c_str());
  lock_.release();
  owns_work_ = false;
}

bool OutputFolder::contains(const std::string& file) const {
  const fs::path inside = output_target(file).lexically_relative(target_);
  return !inside.empty() && *inside.begin() != "..";
}

/// Throws if the target cannot be replaced, so that a run that would fail at the end fails at the
/// start.
void OutputFolder::try_exchange() const {
  const fs::path a = fs::path(work_) / "a", b = fs::path(work_) / "b";
  if (access(target_.c_str(), W_OK | X_OK) != 0 || mkdir(a.c_str(), kFolderMode) != 0 ||
      mkdir(b.c_str(), kFolderMode) != 0 || !swap_folders(a, b))
    fail(target_.string() + " cannot be replaced: " + exchange_reason() + "; give a new folder");
  fs::remove(a);
  fs::remove(b);
}

/// Throws an error, but keeps the work folder, because its files are complete.
void OutputFolder::keep(const std::string& problem) {
  owns_work_ = false;
  fail(problem + "; the files are complete in " + work_ +
       ", so rename this folder before the next run, which removes it");
}

void OutputFolder::fail_changed() const {
  fail(target_.string() +
       " has changed since this run began, so it was not replaced; give a new folder");
}

/// Exchanges the old and the new folder atomically.
void OutputFolder::exchange() {
  if (!swap_folders(work_, target_))
    keep(target_.string() + " cannot be replaced: " + exchange_reason());
  if (state_of(work_) == before_) return;
  if (swap_folders(work_, target_)) fail_changed();
  const std::string why = exchange_reason();
  owns_work_ = false;
  discard();
  fail(target_.string() + " has changed since this run began, and cannot be put back: " + why +
       "; its old files are in " + work_);
}

void OutputFolder::commit() {
  if (const std::string run = run_of(lock_path_); run != run_)
    fail(work_ + " was taken by another run (" + run +
         ") while this run wrote it; use another folder for every run");
  if (replaces_) write_marker(work_);
  sync_folder(work_);
  if (state_of(target_) != before_) fail_changed();
  if (!before_.empty()) {
    exchange();
  } else if (std::rename(work_.c_str(), target_.c_str()) != 0) {
    // For example, another program may have created a file or a non-empty folder at this path
    // during the run.
    keep(target_.string() + " cannot be written: " + reason());
  }
  sync_folder(target_.parent_path());
  owns_work_ = !before_.empty();  // the work folder is now the old folder
  discard();
}

}  // namespace muonrt::tool
