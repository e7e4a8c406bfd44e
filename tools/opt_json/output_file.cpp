#include "opt_json/output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <random>
#include <stdexcept>

namespace muonrt::tool {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& problem) {
  throw std::runtime_error(path + ": " + problem);
}

}  // namespace

fs::path output_target(const std::string& path) {
  constexpr int kMaxLinks = 40;  // Linux has the same limit
  std::error_code error;
  fs::path at = fs::absolute(path, error);
  for (int links = 0; !error && fs::is_symlink(fs::symlink_status(at, error)); ++links) {
    if (links == kMaxLinks) refuse(path, "cannot be written: it is a link to itself");
    at = at.parent_path() / fs::read_symlink(at, error);
  }
  // If the path cannot be read, ignore the error here, because opening the file will report it.
  const fs::path whole = fs::weakly_canonical(at, error);
  return error ? at : whole;
}

namespace {

/// Resolves all links in the path. Throws unless the result is a regular file or does not exist.
fs::path regular_target(const std::string& path) {
  const fs::path target = output_target(path);
  std::error_code error;
  const fs::file_status found = fs::status(target, error);
  if (fs::is_directory(found)) refuse(path, "is a folder; give the name of a file");
  if (fs::exists(found) && !fs::is_regular_file(found)) {
    refuse(path, "is not a regular file; give the name of a regular file or a new file");
  }
  return target;
}

bool same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  return output_target(a) == output_target(b) || fs::equivalent(a, b, error);
}

/// A new file with a random name in the folder of the target. The constructor neither replaces an
/// existing file nor follows a link. The destructor removes the file unless it was published.
class Temporary {
 public:
  explicit Temporary(std::string path) : path_(std::move(path)), target_(regular_target(path_)) {
    // Give the new file the user, the group and the permissions of the old file. Only root can
    // change the user.
    struct stat before;
    const bool replaces = stat(target_.c_str(), &before) == 0;
    std::random_device random;
    for (int tries = 0; file_ < 0 && tries < 10; ++tries) {
      name_ = target_.parent_path() / ("muonrt.tmp." + std::to_string(random()));
      file_ = open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC,
                   replaces ? 0600 : 0666);
      if (file_ < 0 && errno != EEXIST) break;
    }
    if (file_ < 0) fail();
    if (!replaces) return;
    static_cast<void>(!fchown(file_, before.st_uid, before.st_gid));
    fchmod(file_, before.st_mode & 0777);
  }
  ~Temporary() {
    close(file_);
    if (!published_) unlink(name_.c_str());
  }
  Temporary(const Temporary&) = delete;
  Temporary& operator=(const Temporary&) = delete;

  void write(const std::string& content) {
    for (size_t done = 0; done < content.size();) {
      const ssize_t wrote = ::write(file_, content.data() + done, content.size() - done);
      if (wrote < 0 && errno != EINTR) fail();
      done += static_cast<size_t>(std::max<ssize_t>(wrote, 0));
    }
    if (fsync(file_) != 0) fail();
  }
  void publish() {
    if (std::rename(name_.c_str(), target_.c_str()) != 0) fail();
    published_ = true;
  }

 private:
  [[noreturn]] void fail() const {
    refuse(path_, std::string("cannot be written: ") + std::strerror(errno));
  }

  std::string path_;
  fs::path target_, name_;
  int file_ = -1;
  bool published_ = false;
};

}  // namespace

void write_text_file(const std::string& path, const std::string& content) {
  Temporary file(path);
  file.write(content);
  file.publish();
}

bool flush_output() {
  std::cout.flush();
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout;
}

void require_writable(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const NamedFile& out = outputs[i];
    if (out.path.empty()) refuse(out.option, "is empty; give the name of a file");
    try {
      const Temporary file(out.path);  // throws if the folder is not writable
    } catch (const std::exception& e) {
      refuse(out.option, e.what());
    }
    const auto compare = [&](const NamedFile& other) {
      if (!same_file(out.path, other.path)) return;
      refuse(out.option, out.path + " is the file of " + other.option + ", too; name another");
    };
    for (size_t k = 0; k < i; ++k) compare(outputs[k]);
    for (const NamedFile& in : inputs) compare(in);
  }
}

}  // namespace muonrt::tool
