#include "command/step/commit.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <set>
#include <stdexcept>
#include <string_view>

#include "base/crc32c.hpp"
#include "state/digits.hpp"
#include "state/files.hpp"
#include "state/tensor_file.hpp"

namespace muonrt::tool {

namespace fs = std::filesystem;

namespace {

// The content of an intent file: this, then for each file its checksum, its bytes, and where it
// lies and is to lie, seen from the folder of the intent; then the checksum of all that. Each ends
// with NUL but the last.
constexpr std::string_view kMagic = "muonrt step intent 1";
constexpr size_t kDigits = 8;

struct Output {
  std::string crc32c, bytes;
  fs::path temporary, target;
};

[[noreturn]] void refuse(const fs::path& path, const std::string& problem) {
  throw std::runtime_error(path.string() + ": " + problem);
}

[[noreturn]] void fail(const fs::path& path) {
  refuse(path, std::string("cannot be written: ") + std::strerror(errno));
}

std::string sum_of(std::string_view bytes) {
  return digits_of(crc32c(bytes.data(), bytes.size()), kDigits);
}

Output described(const OutputFile& file) {
  const MappedFile map(file.temporary());
  const auto bytes = map.bytes();
  return {digits_of(crc32c(bytes.data(), bytes.size()), kDigits), std::to_string(bytes.size()),
          file.temporary(), file.target()};
}

/// Whether that file holds what the output is to hold.
bool is_whole(const Output& o, const fs::path& at) {
  try {
    const MappedFile map(at.string());
    const auto bytes = map.bytes();
    return std::to_string(bytes.size()) == o.bytes &&
           digits_of(crc32c(bytes.data(), bytes.size()), kDigits) == o.crc32c;
  } catch (const std::exception&) {
    return false;
  }
}

/// One that this process alone reads and changes.
class IntentFile {
 public:
  /// @param create  where there is none; else it is `empty` then.
  IntentFile(fs::path path, bool create) : path_(std::move(path)) {
    const int flags = O_RDWR | O_NOFOLLOW | O_CLOEXEC | (create ? O_CREAT : 0);
    // Whoever had the lock may have removed the file: then it is no longer the one of that name.
    while (!locked_) {
      file_ = open(path_.c_str(), flags, 0600);
      if (file_ < 0 && errno == ENOENT && !create) return;
      if (file_ < 0) fail(path_);
      while (flock(file_, LOCK_EX) != 0 && errno == EINTR) continue;
      struct stat mine, named;
      if (fstat(file_, &mine) != 0) fail(path_);
      locked_ = lstat(path_.c_str(), &named) == 0 && named.st_ino == mine.st_ino &&
                named.st_dev == mine.st_dev;
      if (!locked_) close(file_);
      if (locked_ && (mine.st_uid != geteuid() || !S_ISREG(mine.st_mode))) {
        close(file_);
        refuse(path_, "is not this user's; whose run of muonrt step left it is to run it again");
      }
    }
    read();
  }
  ~IntentFile() {
    if (locked_) close(file_);
  }
  IntentFile(const IntentFile&) = delete;
  IntentFile& operator=(const IntentFile&) = delete;

  const fs::path& path() const { return path_; }
  bool is_there() const { return locked_; }
  bool empty() const { return content_.empty(); }

  /// None where it was not written to its end.
  std::optional<std::vector<Output>> outputs() const {
    const size_t end = content_.size() < kDigits ? 0 : content_.size() - kDigits;
    const std::string_view text = std::string_view(content_).substr(0, end);
    if (end == 0 || sum_of(text) != content_.substr(end)) return std::nullopt;
    std::vector<std::string> fields;
    for (size_t at = 0; at < end; at += fields.back().size() + 1)
      fields.emplace_back(content_.c_str() + at);
    std::vector<Output> out;
    for (size_t i = 1; i + 3 < fields.size(); i += 4)
      out.push_back({fields[i], fields[i + 1], folder() / fields[i + 2], folder() / fields[i + 3]});
    return out;
  }

  /// On disk, but perhaps not its name.
  void write(const std::vector<Output>& outputs) {
    content_ = kMagic;
    for (const Output& o : outputs) {
      for (const std::string& field :
           {o.crc32c, o.bytes, o.temporary.lexically_relative(folder()).string(),
            o.target.lexically_relative(folder()).string()})
        content_ += '\0' + field;
    }
    content_ += '\0';
    content_ += sum_of(content_);
    for (size_t done = 0; done < content_.size();) {
      const ssize_t wrote = ::write(file_, content_.data() + done, content_.size() - done);
      if (wrote < 0 && errno != EINTR) fail(path_);
      done += static_cast<size_t>(std::max<ssize_t>(wrote, 0));
    }
    if (fsync(file_) != 0) fail(path_);
  }

  void remove() { unlink(path_.c_str()); }

 private:
  fs::path folder() const { return path_.parent_path(); }
  void read() {
    char part[4096];
    for (ssize_t got = 1; got > 0;) {
      got = ::read(file_, part, sizeof part);
      if (got < 0) fail(path_);
      content_.append(part, static_cast<size_t>(got));
    }
    const size_t common = std::min(content_.size(), kMagic.size());
    if (content_.substr(0, common) != kMagic.substr(0, common)) {
      close(file_);
      refuse(path_, "is no intent file of muonrt step; give it another name");
    }
  }

  fs::path path_;
  int file_ = -1;
  bool locked_ = false;
  std::string content_;
};

fs::path intent_of(const fs::path& target) { return target.string() + ".muonrt-intent"; }

void remove_temporaries(const std::vector<Output>& outputs) {
  for (const Output& o : outputs)
    if (o.temporary.filename().string().starts_with(TemporaryFile::kPrefix))
      unlink(o.temporary.c_str());
}

void sync_folders(const std::vector<Output>& outputs, const IntentFile& intent) {
  std::set<fs::path> folders = {intent.path().parent_path()};
  for (const Output& o : outputs) folders.insert(o.target.parent_path());
  for (const fs::path& folder : folders) Files().sync_folder(folder.string());
}

/// Names for those that have none yet; what leads to them is on disk.
void complete(IntentFile& intent, const std::vector<Output>& outputs) {
  bool any = false;
  for (const Output& o : outputs) {
    if (!fs::exists(fs::symlink_status(o.temporary))) {
      any = true;
    } else if (std::rename(o.temporary.c_str(), o.target.c_str()) == 0) {
      any = true;
    } else if (any) {
      refuse(o.target, std::string("cannot be written: ") + std::strerror(errno) +
                           "; mend that: " + "the next run of muonrt step then gives " +
                           o.temporary.string() + " that name");
    } else {
      const int reason = errno;
      remove_temporaries(outputs);
      intent.remove();
      errno = reason;
      fail(o.target);
    }
  }
  sync_folders(outputs, intent);
  intent.remove();
}

/// What `intent` holds of a run that has ended; it is removed.
void finish_earlier(IntentFile& intent) {
  if (intent.empty()) return intent.remove();
  const auto outputs = intent.outputs();
  bool whole = outputs.has_value();
  std::string named;
  for (const Output& o : outputs.value_or(std::vector<Output>())) {
    const bool waits = fs::exists(fs::symlink_status(o.temporary));
    const bool good = is_whole(o, waits ? o.temporary : o.target);
    whole = whole && good;
    if (good && !waits) named += (named.empty() ? "" : ", ") + o.target.string();
  }
  if (whole) {
    sync_folders(*outputs, intent);
    complete(intent, *outputs);
  }
  if (!whole && outputs) remove_temporaries(*outputs);
  if (!whole) intent.remove();
  fmt::print(stderr, "muonrt: note: {}: a run ended while its files took their names; {}\n",
             intent.path().string(),
             whole           ? "that is completed now"
             : named.empty() ? "not all of them are whole, so what was there stays"
                             : "not all of them are whole: new are only " + named);
}

}  // namespace

void publish_together(const std::vector<OutputFile*>& files, const std::string& path) {
  if (files.size() == 1) return files[0]->publish();
  std::vector<Output> outputs;
  for (const OutputFile* file : files) outputs.push_back(described(*file));
  const fs::path intent_path = intent_of(output_target(path));
  for (;;) {
    IntentFile intent(intent_path, true);
    if (!intent.empty()) {
      finish_earlier(intent);
      continue;
    }
    try {
      intent.write(outputs);
      sync_folders(outputs, intent);
    } catch (const std::exception&) {
      intent.remove();
      throw;
    }
    for (OutputFile* file : files) file->release();
    return complete(intent, outputs);
  }
}

void recover_commit(const std::string& path) {
  IntentFile intent(intent_of(output_target(path)), false);
  if (intent.is_there()) finish_earlier(intent);
}

}  // namespace muonrt::tool
