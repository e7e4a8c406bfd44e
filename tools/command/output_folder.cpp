#include "command/output_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <stdexcept>

#include "opt_json/output_file.hpp"
#include "state/tensor_file.hpp"

namespace muonrt::tool {

namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

// Marks a folder of this class: it is written first and removed last. While a run writes, it names
// the run; at the end it lists all files.
constexpr const char* kMarker = "muonrt-output.json";
constexpr const char* kFormat = "muonrt output 2";
// Locked while a run writes. It is a file because NFS forwards no locks of folders.
constexpr const char* kLock = "muonrt-output.lock";
constexpr mode_t kFolderMode = 0777, kFileMode = 0666;

std::string reason() { return std::strerror(errno); }

std::string exchange_reason() {
  return errno == EINVAL ? "this file system cannot exchange two folders" : reason();
}

/// Bytes, time and inode of all files below a folder, by their path in it; except the lock.
Json files_of(const fs::path& folder) {
  constexpr int64_t kSecond = 1000000000;
  Json out = Json::object();
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().lexically_relative(folder).string();
    if (name == kLock || (!entry.is_symlink() && entry.is_directory())) continue;
    struct stat s = {};
    lstat(entry.path().c_str(), &s);
    out[name] = {{"bytes", s.st_size},
                 {"inode", s.st_ino},
                 {"mtime_ns", s.st_mtim.tv_sec * kSecond + s.st_mtim.tv_nsec}};
  }
  return out;
}

/// Null if it is missing or invalid.
Json marker_of(const fs::path& folder) {
  try {
    const MappedFile file((folder / kMarker).string());
    const Json out = Json::parse(file.text(), nullptr, false);
    return out.is_object() && out.value("format", "") == kFormat ? out : Json();
  } catch (const std::exception&) {
    return Json();
  }
}

std::string text_of(const Json& marker, const char* key) {
  const bool has = marker.is_object() && marker.contains(key) && marker[key].is_string();
  return has ? marker[key].get<std::string>() : "";
}

std::string run_of(const Json& marker) {
  const std::string out = text_of(marker, "run");
  return out.empty() ? "unknown" : out;
}

void write_marker(const fs::path& folder, const Json& content) {
  Files files;
  const std::string path = (folder / kMarker).string(), text = content.dump(1) + "\n";
  OutFile file(files, path + ".tmp");
  file.write(text.data(), std::ssize(text), 0);
  file.finish();
  file.publish(path);
}

/// Equal as long as no file in a folder changes; "" if it is empty or missing.
std::string state_of(const fs::path& folder) {
  std::error_code none;
  if (!fs::exists(folder, none)) return "";
  if (!fs::is_directory(folder, none)) return "no folder";
  const Json files = files_of(folder);
  return files.empty() ? "" : files.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string host_name() {
  std::array<char, 256> host = {};
  gethostname(host.data(), host.size() - 1);
  return host.data();
}

std::string random_id() {
  std::random_device random;
  return std::to_string(random()) + "-" + std::to_string(random());
}

bool is_mount_point(const fs::path& folder) {
  struct stat own, parent;
  if (stat(folder.c_str(), &own) != 0 || stat(folder.parent_path().c_str(), &parent) != 0)
    return false;
  struct statx more = {};
  return own.st_dev != parent.st_dev || (statx(AT_FDCWD, folder.c_str(), 0, 0, &more) == 0 &&
                                         (more.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0);
}

/// Whether other hosts do not see the locks of a file, as NFS and Lustre can be mounted.
bool locks_are_local(int file) {
  struct stat info;
  if (fstat(file, &info) != 0) return false;
  const std::string device =
      std::to_string(major(info.st_dev)) + ":" + std::to_string(minor(info.st_dev));
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string mount, parent, its_device;
    words >> mount >> parent >> its_device;
    if (its_device != device) continue;
    for (const char* option : {"local_lock=all", "local_lock=flock", "localflock"})
      if (line.find(option) != line.npos) return true;
  }
  return false;
}

bool has_name(int file, const fs::path& path) {
  struct stat own, named;
  return fstat(file, &own) == 0 && lstat(path.c_str(), &named) == 0 && own.st_ino == named.st_ino &&
         own.st_dev == named.st_dev;
}

bool swap_folders(const fs::path& a, const fs::path& b) {
  return renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0;
}

}  // namespace

std::string OutputFolder::work_path(const std::string& path) {
  std::string name = path;
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  return output_target(name).string() + ".muonrt-tmp";
}

OutputFolder::OutputFolder(std::string option, const std::string& path, bool replaces)
    : option_(std::move(option)), replaces_(replaces), id_(random_id()) {
  if (path.empty()) throw std::runtime_error(option_ + ": is empty; give the name of a folder");
  work_ = work_path(path);
  target_ = work_.substr(0, work_.rfind('.'));
  check_target();
  lock();
  try {
    clear();
    before_ = state_of(target_);
    const std::string host = host_name(), process = "process " + std::to_string(getpid());
    write_marker(
        work_,
        {{"format", kFormat}, {"host", host}, {"id", id_}, {"run", process + " on " + host}});
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
  if (owned_ && is_own()) discard();
}

void OutputFolder::fail(const std::string& problem) const {
  throw std::runtime_error(option_ + ": " + problem);
}

/// Whether no other run has taken the work folder, as it can if locks do not work.
bool OutputFolder::is_own() const { return text_of(marker_of(work_), "id") == id_; }

/// Fails unless the target is missing, is empty, or holds only unchanged files of this class.
void OutputFolder::check_target() const {
  const std::string name = target_.string();
  std::error_code error;
  const fs::file_status found = fs::status(target_, error);
  if (!fs::exists(found)) return;
  if (!fs::is_directory(found)) fail(name + " is no folder; give the name of one, or of none yet");
  if (is_mount_point(target_))
    fail(name + " is a mount point, which cannot be replaced; give the name of a folder in it");
  const auto refuse = [&](const std::string& file, const char* what) {
    fail(name + " has '" + file + "' in it" + what + " and is left as it is; give a new folder");
  };
  const Json marker = replaces_ ? marker_of(target_) : Json();
  if (marker.is_null()) {
    for (const auto& entry : fs::directory_iterator(target_))
      refuse(entry.path().filename().string(),
             replaces_ ? ", which this command did not write," : ",");
    return;
  }
  const Json known = marker.value("files", Json::object());
  const Json held = files_of(target_);
  for (const auto& [file, content] : held.items()) {
    if (file == kMarker) continue;
    const auto written = known.find(file);
    if (written == known.end()) refuse(file, ", which this command did not write,");
    if (*written != content) refuse(file, ", which has changed since this command wrote it,");
  }
}

/// Fails if another run has the work folder, or if the locks of the file system cannot tell.
void OutputFolder::lock() {
  const bool is_new = mkdir(work_.c_str(), kFolderMode) == 0;
  if (!is_new && errno != EEXIST) fail(work_ + " cannot be written: " + reason());
  const int folder = open(work_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0) fail(work_ + " cannot be opened: " + reason());
  const FileLock closes(folder);
  if (!is_new) leftovers();
  const int file = openat(folder, kLock, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, kFileMode);
  if (file < 0) {
    const std::string why = reason();
    if (is_new) rmdir(work_.c_str());
    fail(work_ + "/" + kLock + " cannot be opened: " + why);
  }
  FileLock out(file);
  const bool locked = flock(file, LOCK_EX | LOCK_NB) == 0;
  const bool taken = !locked && errno == EWOULDBLOCK;
  const Json marker = marker_of(work_);
  if (taken || !has_name(file, fs::path(work_) / kLock))
    fail(target_.string() + " is being written by another run (" + run_of(marker) +
         "); wait for it, or give another folder");
  const bool elsewhere = !marker.is_null() && text_of(marker, "host") != host_name();
  if (locked ? elsewhere && locks_are_local(file) : !is_new)
    fail(work_ + " belongs to another run (" + run_of(marker) +
         "), and the file system cannot lock it, so that run may still write; remove it if that "
         "run has ended");
  lock_ = std::move(out);
  owned_ = true;
}

/// What is in the work folder, except lock and marker. Fails if it is not of this class.
std::vector<fs::path> OutputFolder::leftovers() const {
  const fs::path marker = fs::path(work_) / kMarker;
  std::error_code none;
  bool marked = fs::exists(marker, none), early = true;
  std::vector<fs::path> out;
  for (const auto& entry : fs::directory_iterator(work_)) {
    const std::string name = entry.path().filename().string();
    if (name == kMarker || name == kLock) continue;
    out.push_back(entry.path());
    early = early && name == std::string(kMarker) + ".tmp";
  }
  marked = marked || fs::exists(marker, none);  // another run may have begun
  if (!marked && !early)
    fail(work_ + " is there, and no run of this command has left it; remove it");
  return out;
}

/// Empties the work folder, the marker last, and keeps the lock.
void OutputFolder::clear() {
  for (const fs::path& path : leftovers()) fs::remove_all(path);
  fs::remove(fs::path(work_) / kMarker);
}

/// Removes the work folder. If that fails, the next run with this name removes it.
void OutputFolder::discard() noexcept {
  try {
    clear();
  } catch (const std::exception&) {
    // Only an empty folder is removed below.
  }
  release(work_);
  rmdir(work_.c_str());
}

/// Removes the lock from a folder. Closing follows because NFS keeps an open file under another
/// name.
void OutputFolder::release(const fs::path& folder) noexcept {
  unlink((folder / kLock).c_str());
  lock_ = FileLock();
  owned_ = false;
}

bool OutputFolder::contains(const std::string& file) const {
  const fs::path inside = output_target(file).lexically_relative(target_);
  return !inside.empty() && *inside.begin() != "..";
}

/// Before the work: fails if the target cannot be replaced at the end.
void OutputFolder::try_exchange() const {
  const fs::path a = fs::path(work_) / "a", b = fs::path(work_) / "b";
  if (access(target_.c_str(), W_OK | X_OK) != 0 || mkdir(a.c_str(), kFolderMode) != 0 ||
      mkdir(b.c_str(), kFolderMode) != 0 || !swap_folders(a, b))
    fail(target_.string() + " cannot be replaced: " + exchange_reason() + "; give a new folder");
  fs::remove(a);
  fs::remove(b);
}

/// Fails, but the work folder stays, for its files are complete.
void OutputFolder::keep(const std::string& problem) {
  release(work_);
  fail(problem + "; the files are complete in " + work_ +
       ", so rename this folder before the next run, which removes it");
}

void OutputFolder::fail_changed() const {
  fail(target_.string() + " has changed since this run began, and is left as it is");
}

/// Old and new change places, so that there is no moment without either. The old one, which is then
/// to be removed, is locked before.
void OutputFolder::exchange() {
  const fs::path old_lock = target_ / kLock;
  const int file = open(old_lock.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, kFileMode);
  FileLock old(file);
  if (file < 0 || (flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) ||
      !swap_folders(work_, target_)) {
    const std::string why = exchange_reason();
    unlink(old_lock.c_str());
    keep(target_.string() + " cannot be replaced: " + why);
  }
  if (state_of(work_) != before_) {
    if (!swap_folders(work_, target_))
      fail(target_.string() + " has changed since this run began, and cannot be put back: " +
           exchange_reason() + "; its old files are in " + work_);
    unlink(old_lock.c_str());
    fail_changed();
  }
  release(target_);
  lock_ = std::move(old);
}

void OutputFolder::commit() {
  Files files;
  if (!is_own()) {
    const std::string run = run_of(marker_of(work_));
    fail(work_ + " was taken by another run (" + run +
         ") while this run wrote it; use another folder for every run");
  }
  if (replaces_) {
    Json known = files_of(work_);
    known.erase(kMarker);
    write_marker(work_, {{"format", kFormat}, {"id", id_}, {"files", known}});
  }
  files.sync_folder(work_);
  if (state_of(target_) != before_) fail_changed();
  const std::string parent = target_.parent_path().string();
  if (!before_.empty()) {
    exchange();
    files.sync_folder(parent);
    discard();
    return;
  }
  // Fails if by now a file is there, or a folder that is not empty.
  if (std::rename(work_.c_str(), target_.c_str()) != 0)
    keep(target_.string() + " cannot be written: " + reason());
  owned_ = false;
  files.sync_folder(parent);
  if (!replaces_) unlink((target_ / kMarker).c_str());
  release(target_);
  files.sync_folder(target_.string());
}

}  // namespace muonrt::tool
