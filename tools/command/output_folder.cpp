#include "command/output_folder.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "opt_json/output_file.hpp"
#include "state/files.hpp"
#include "state/tensor_file.hpp"

namespace muonrt::tool {

namespace fs = std::filesystem;
using Json = nlohmann::json;

namespace {

// Written first and removed last: it says that a folder is of this class. Meanwhile it names the
// run, at the end all files and their bytes.
constexpr const char* kMarker = "muonrt-output.json";
constexpr const char* kFormat = "muonrt output 1";
constexpr mode_t kFolderMode = 0777;

std::string reason() { return std::strerror(errno); }

/// All files below a folder, by their path in it.
std::vector<std::string> files_of(const fs::path& folder) {
  std::vector<std::string> out;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_symlink() || !entry.is_directory())
      out.push_back(entry.path().lexically_relative(folder).string());
  std::sort(out.begin(), out.end());
  return out;
}

/// Null where it is not there, or is none.
Json marker_of(const fs::path& folder) {
  try {
    const MappedFile file((folder / kMarker).string());
    const Json out = Json::parse(file.text(), nullptr, false);
    return out.is_object() && out.value("format", "") == kFormat ? out : Json();
  } catch (const std::exception&) {
    return Json();
  }
}

void write_marker(const fs::path& folder, const Json& content) {
  Files files;
  const std::string path = (folder / kMarker).string(), text = content.dump(1) + "\n";
  OutFile file(files, path + ".tmp");
  file.write(text.data(), std::ssize(text), 0);
  file.finish();
  file.publish(path);
}

/// Names, sizes, numbers and times of all that lies in a folder; "" where it is empty or missing.
std::string state_of(const fs::path& folder) {
  std::error_code none;
  if (!fs::exists(folder, none)) return "";
  if (!fs::is_directory(folder, none)) return "no folder";
  std::string out;
  for (const std::string& file : files_of(folder)) {
    struct stat s = {};
    lstat((folder / file).c_str(), &s);
    out += file;
    for (const int64_t n :
         {static_cast<int64_t>(s.st_ino), static_cast<int64_t>(s.st_size),
          static_cast<int64_t>(s.st_mtim.tv_sec), static_cast<int64_t>(s.st_mtim.tv_nsec)})
      out += " " + std::to_string(n);
    out += "\n";
  }
  return out;
}

std::string this_run() {
  std::array<char, 256> host = {};
  gethostname(host.data(), host.size() - 1);
  return "process " + std::to_string(getpid()) + " on " + host.data();
}

}  // namespace

std::string OutputFolder::work_path(const std::string& path) {
  std::string name = path;
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  return output_target(name).string() + ".muonrt-tmp";
}

OutputFolder::OutputFolder(std::string option, const std::string& path, bool replaces)
    : option_(std::move(option)), replaces_(replaces) {
  if (path.empty()) throw std::runtime_error(option_ + ": is empty; give the name of a folder");
  work_ = work_path(path);
  target_ = work_.substr(0, work_.rfind('.'));
  check_target();
  lock();
  try {
    clear();
    before_ = state_of(target_);
    struct stat old;
    if (!before_.empty() && stat(target_.c_str(), &old) == 0)
      static_cast<void>(fchmod(folder_, old.st_mode & kFolderMode));
    write_marker(work_, {{"format", kFormat}, {"run", this_run()}});
  } catch (const std::exception&) {
    rmdir(work_.c_str());  // where it is empty
    close(folder_);
    throw;
  }
}

OutputFolder::~OutputFolder() {
  if (folder_ < 0) return;
  std::error_code none;
  try {
    clear();
    fs::remove(work_, none);
  } catch (const std::exception&) {
    // The next run with this name removes it.
  }
  close(folder_);
}

void OutputFolder::fail(const std::string& problem) const {
  throw std::runtime_error(option_ + ": " + problem);
}

/// That it is not there, is empty, or holds what was written by this class and nothing else.
void OutputFolder::check_target() const {
  const std::string name = target_.string();
  std::error_code error;
  const fs::file_status found = fs::status(target_, error);
  if (!fs::exists(found)) return;
  if (!fs::is_directory(found)) fail(name + " is no folder; give the name of one, or of none yet");
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
  for (const std::string& file : files_of(target_)) {
    const auto bytes = known.find(file);
    const auto size = static_cast<int64_t>(fs::file_size(target_ / file, error));
    if (file == kMarker || (bytes != known.end() && *bytes == size)) continue;
    refuse(file, ", which this command did not write, or not so,");
  }
}

/// Another process that has it makes this one fail at once. Where the file system has no locks, one
/// that is there makes it fail, too.
void OutputFolder::lock() {
  const bool is_new = mkdir(work_.c_str(), kFolderMode) == 0;
  if (!is_new && errno != EEXIST) fail(work_ + " cannot be written: " + reason());
  const int folder = open(work_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0) fail(work_ + " cannot be opened: " + reason());
  const bool locked = flock(folder, LOCK_EX | LOCK_NB) == 0;
  const bool taken = !locked && errno == EWOULDBLOCK;
  struct stat mine, named;
  const bool same = fstat(folder, &mine) == 0 && lstat(work_.c_str(), &named) == 0 &&
                    mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
  if (same && (locked || (is_new && !taken))) {
    folder_ = folder;
    return;
  }
  close(folder);
  if (same && !taken)
    fail(work_ + " cannot be locked; remove it if no other run writes " + target_.string());
  const Json marker = marker_of(work_);
  fail(target_.string() + " is being written by another run (" +
       (marker.is_null() ? "unknown" : marker.value("run", "unknown")) +
       "); wait for it, or give another folder");
}

/// Removes all that is in the work folder, which must be of this class; the marker last.
void OutputFolder::clear() {
  std::vector<fs::path> there;
  bool marked = false;
  for (const auto& entry : fs::directory_iterator(work_)) {
    const std::string name = entry.path().filename().string();
    marked = marked || name == kMarker;
    if (name != kMarker) there.push_back(entry.path());
  }
  const std::string first = std::string(kMarker) + ".tmp";
  if (!marked && !there.empty() && (there.size() > 1 || there[0].filename() != first))
    fail(work_ + " is there, and no run of this command has left it; remove it");
  for (const fs::path& path : there) fs::remove_all(path);
  if (marked) fs::remove(fs::path(work_) / kMarker);
}

bool OutputFolder::contains(const std::string& file) const {
  const fs::path inside = output_target(file).lexically_relative(target_);
  return !inside.empty() && *inside.begin() != "..";
}

/// Old and new change places, so that there is no moment without either. The old one, which is then
/// to be removed, stays locked.
void OutputFolder::exchange() {
  const int old = open(target_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  bool done = old >= 0 && (flock(old, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK);
  done =
      done && renameat2(AT_FDCWD, work_.c_str(), AT_FDCWD, target_.c_str(), RENAME_EXCHANGE) == 0;
  const std::string why =
      errno == EINVAL ? "this file system cannot exchange two folders" : reason();
  close(done ? folder_ : old);
  if (!done) fail(target_.string() + " cannot be replaced: " + why + "; give a new folder");
  folder_ = old;
}

void OutputFolder::commit() {
  Files files;
  const fs::path marker = fs::path(work_) / kMarker;
  if (replaces_) {
    Json known = Json::object();
    for (const std::string& file : files_of(work_))
      if (file != kMarker) known[file] = fs::file_size(fs::path(work_) / file);
    write_marker(work_, {{"format", kFormat}, {"files", known}});
  } else {
    fs::remove(marker);
  }
  files.sync_folder(work_);
  const std::string changed =
      target_.string() + " has changed since this run began, and is left as it is";
  if (state_of(target_) != before_) fail(changed);
  if (before_.empty()) {
    // Fails where a file or a folder with something in it is there by now.
    if (std::rename(work_.c_str(), target_.c_str()) != 0)
      fail(target_.string() + " cannot be written: " + reason());
  } else {
    exchange();
    if (state_of(work_) != before_) {
      exchange();
      fail(changed);
    }
  }
  files.sync_folder(target_.parent_path().string());
  if (!before_.empty()) return;
  close(folder_);
  folder_ = -1;
}

}  // namespace muonrt::tool
