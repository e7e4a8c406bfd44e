#include "opt_json/temporary_file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <mutex>
#include <random>
#include <string>

namespace muonrt::tool {

/// Never freed: the handler of signals reads the list, and can neither lock nor allocate.
struct TemporaryFile::Name {
  explicit Name(std::string p) : path(std::move(p)), next(newest) {
    while (!newest.compare_exchange_weak(next, this)) continue;
  }
  const std::string path;
  std::atomic<bool> used = true;
  Name* next;

  static std::atomic<Name*> newest;
  static void remove_all() {
    for (const Name* name = newest; name; name = name->next)
      if (name->used) unlink(name->path.c_str());
  }
};
std::atomic<TemporaryFile::Name*> TemporaryFile::Name::newest = nullptr;

namespace {

constexpr std::array kSignals = {SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM, SIGXFSZ};
std::array<struct sigaction, kSignals.size()> former;
std::mutex counting;
int files = 0;  // under `counting`

void restore_handlers() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &former[i], nullptr);
}

/// Handlers are there while a file is.
void count(int more, void (*handler)(int)) {
  const std::lock_guard lock(counting);
  const int before = files;
  files += more;
  if (files == 0) restore_handlers();
  if (before != 0) return;
  struct sigaction action = {};
  action.sa_handler = handler;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &former[i]);
    if (former[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
  }
}

std::string random_name() {
  std::random_device random;
  std::string out = TemporaryFile::kPrefix;
  for (int i = 0; i < 16; ++i) out += "0123456789abcdef"[random() % 16];
  return out;
}

}  // namespace

TemporaryFile::TemporaryFile(const std::filesystem::path& folder, mode_t mode) {
  // It ends the process when it returns: meanwhile its signal is blocked. A former handler is not
  // asked: UCX, which Open MPI 5 loads, has one for SIGHUP that waits for a debugger.
  const auto handler = [](int number) {
    Name::remove_all();
    std::signal(number, SIG_DFL);
    raise(number);
  };
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  int descriptor = -1;
  for (int tries = 0; descriptor < 0 && tries < 10; ++tries) {
    if (name_) forget();
    name_ = new Name(folder / random_name());
    count(1, handler);
    descriptor = open(name_->path.c_str(), kFlags, mode);
    if (descriptor < 0 && errno != EEXIST) break;
  }
  const int reason = errno;
  if (descriptor < 0) forget();
  if (descriptor >= 0) file_ = fdopen(descriptor, "wb");
  if (descriptor < 0) errno = reason;
}

void TemporaryFile::forget() {
  name_->used = false;
  name_ = nullptr;
  count(-1, nullptr);
}

TemporaryFile::~TemporaryFile() {
  if (file_) std::fclose(file_);
  if (!name_) return;
  unlink(name_->path.c_str());
  forget();
}

bool TemporaryFile::close() {
  if (std::fflush(file_) != 0 || fsync(fileno(file_)) != 0) return false;
  std::FILE* file = file_;
  file_ = nullptr;
  return std::fclose(file) == 0;
}

const std::string& TemporaryFile::path() const { return name_->path; }

bool TemporaryFile::rename(const std::filesystem::path& target) {
  if (std::rename(name_->path.c_str(), target.c_str()) != 0) return false;
  forget();
  return true;
}

}  // namespace muonrt::tool
