#include "opt_json/output_file.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <stdexcept>

namespace muonrt::tool {

namespace fs = std::filesystem;

namespace {

[[noreturn]] void refuse(const std::string& path, const std::string& problem) {
  throw std::runtime_error(path + ": " + problem);
}

}  // namespace

fs::path output_target(const std::string& path) {
  constexpr int kMostLinks = 40;  // as Linux has it
  std::error_code error;
  fs::path at = fs::absolute(path, error);
  for (int links = 0; !error && fs::is_symlink(fs::symlink_status(at, error)); ++links) {
    if (links == kMostLinks) refuse(path, "cannot be written: it is a link to itself");
    at = at.parent_path() / fs::read_symlink(at, error);
  }
  // What cannot be looked at is refused when it is opened.
  const fs::path whole = fs::weakly_canonical(at, error);
  return error ? at : whole;
}

namespace {

/// @return  the path of the file itself.
fs::path regular_target(const std::string& path) {
  const fs::path target = output_target(path);
  std::error_code error;
  const fs::file_status found = fs::status(target, error);
  if (fs::is_directory(found)) refuse(path, "is a folder; give the name of a file");
  if (fs::exists(found) && !fs::is_regular_file(found)) {
    refuse(path, "is no regular file; give the name of one, or of none yet");
  }
  return target;
}

bool same_file(const std::string& a, const std::string& b) {
  std::error_code error;
  return output_target(a) == output_target(b) || fs::equivalent(a, b, error);
}

}  // namespace

OutputFile::OutputFile(std::string path) : path_(std::move(path)), target_(regular_target(path_)) {
  // Who may read what was there may read what comes in its place, and nobody else. (That of another
  // user only root can give back.)
  struct stat before;
  const bool replaces = stat(target_.c_str(), &before) == 0;
  temporary_.emplace(target_.parent_path(), replaces ? 0600 : 0666);
  if (!temporary_->file()) fail();
  if (!replaces) return;
  const int descriptor = fileno(temporary_->file());
  static_cast<void>(!fchown(descriptor, before.st_uid, before.st_gid));
  fchmod(descriptor, before.st_mode & 0777);
}

void OutputFile::fail() const {
  refuse(path_, std::string("cannot be written: ") + std::strerror(errno));
}

void OutputFile::write(const void* data, size_t bytes) {
  if (bytes > 0 && std::fwrite(data, 1, bytes, temporary_->file()) != bytes) fail();
}

void OutputFile::rewrite(const void* data, size_t bytes) {
  if (std::fseek(temporary_->file(), 0, SEEK_SET) != 0) fail();
  write(data, bytes);
}

void OutputFile::finish() {
  if (!temporary_->close()) fail();
}

void OutputFile::publish() {
  if (!temporary_ || temporary_->file()) {
    refuse(path_, "internal: published before it is whole, or twice");
  }
  if (!temporary_->rename(target_)) fail();
  temporary_.reset();
}

void OutputFile::release() {
  temporary_->release();
  temporary_.reset();
}

void write_text_file(const std::string& path, const std::string& content) {
  OutputFile file(path);
  file.write(content.data(), content.size());
  file.finish();
  file.publish();
}

bool flush_output() {
  std::cout.flush();
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout;
}

void require_writable(const std::string& path) {
  // As a file would be written, but for its name.
  OutputFile file(path);
  file.finish();
}

void require_writable(const std::vector<NamedFile>& outputs, const std::vector<NamedFile>& inputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    const NamedFile& out = outputs[i];
    if (out.path.empty()) refuse(out.option, "is empty; give the name of a file");
    try {
      require_writable(out.path);
    } catch (const std::exception& e) {
      refuse(out.option, e.what());
    }
    const auto compare = [&](const NamedFile& other) {
      if (!same_file(out.path, other.path)) return;
      refuse(out.option, out.path + " is the file of " + other.option + ", too; name another");
    };
    for (size_t k = 0; k < i; ++k) compare(outputs[k]);
    for (const NamedFile& in : inputs) {
      if (in.option != out.replaces) compare(in);
    }
  }
}

}  // namespace muonrt::tool
