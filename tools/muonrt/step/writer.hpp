#pragma once

#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "muonrt/step/safetensors.hpp"

namespace muonrt::tool {

/// Writes a safetensors file in two halves: all of it to a temporary file beside it, then the name.
/// A run that ends before the second, or that has another file still to write, leaves what was
/// there before.
class TensorWriter {
 public:
  /// The tensors of the file, in the order in which their data will lie; offsets are set here.
  /// Throws std::runtime_error that names the file, as every function does.
  TensorWriter(std::string path, std::vector<TensorEntry> entries,
               const std::map<std::string, std::string>& metadata);
  ~TensorWriter();
  TensorWriter(const TensorWriter&) = delete;
  TensorWriter& operator=(const TensorWriter&) = delete;

  /// The data of the next tensor.
  void add(const void* data, int64_t bytes);
  /// The temporary file is whole and on disk. @return  SHA-256 of its bytes, as hexadecimal digits.
  std::string finish();
  /// The file takes its name; after `finish`.
  void publish();

 private:
  struct Inside;
  void put(const void* data, size_t bytes);
  [[noreturn]] void fail(const char* what) const;

  std::string path_, temporary_;
  std::vector<TensorEntry> entries_;
  size_t next_ = 0;
  std::FILE* file_ = nullptr;
  std::unique_ptr<Inside> inside_;
};

/// Throws std::runtime_error unless a file called `path` can be written: its folder takes one, and
/// it is no folder itself.
void require_writable(const std::string& path);

}  // namespace muonrt::tool
