#include "state/tensor_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "base/descriptor.hpp"
#include "base/error.hpp"

namespace muonrt {

namespace {

[[noreturn]] void fail_to_map(const std::string& path, const char* what, int reason) {
  throw Error(Status::kIo, cat(path, ": ", what, ": ", std::generic_category().message(reason)));
}

}  // namespace

MappedFile::MappedFile(const std::string& path) {
  // With O_NONBLOCK, opening a pipe does not wait for a writer.
  const Descriptor file([&] { return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); });
  if (!file) fail_to_map(path, "cannot be opened", errno);
  struct stat info;
  if (fstat(file.fd(), &info) != 0) fail_to_map(path, "cannot be read", errno);
  MUONRT_REQUIRE(S_ISREG(info.st_mode), Status::kIo, path, ": is not a regular file; pass a file");
  size_ = static_cast<size_t>(info.st_size);
  if (size_ == 0) return;
  void* const data = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd(), 0);
  if (data == MAP_FAILED) fail_to_map(path, "cannot be read", errno);
  data_ = data;
}

MappedFile::~MappedFile() {
  if (data_) munmap(data_, size_);
}

void MappedFile::release_pages() const {
  if (data_) madvise(data_, size_, MADV_DONTNEED);
}

TensorFile::TensorFile(std::string path) : path_(std::move(path)), map_(path_) {
  const auto all = map_.bytes();
  const int64_t header = header_bytes(all.data(), std::ssize(all), path_);
  data_at_ = 8 + static_cast<size_t>(header);
  const auto text = all.subspan(8, static_cast<size_t>(header));
  table_ = parse_tensor_table({reinterpret_cast<const char*>(text.data()), text.size()},
                              std::ssize(all) - std::ssize(text) - 8, path_);
}

}  // namespace muonrt
