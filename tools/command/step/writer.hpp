#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "opt_json/output_file.hpp"
#include "state/safetensors.hpp"

namespace muonrt::tool {

/// Of a file: those of state/checksums.hpp in its metadata, or its SHA-256 for whoever asks.
enum class Sums { none, in_metadata, sha256 };

/// Writes a safetensors file as OutputFile does: whole, then its name.
class TensorWriter {
 public:
  /// The tensors of the file, in the order in which their data will lie; offsets are set here.
  /// Throws std::runtime_error that names the file, as every function does.
  TensorWriter(std::string path, std::vector<TensorEntry> entries,
               std::map<std::string, std::string> metadata, Sums sums);
  ~TensorWriter();
  TensorWriter(const TensorWriter&) = delete;
  TensorWriter& operator=(const TensorWriter&) = delete;

  /// The data of the next tensor.
  void add(const void* data, int64_t bytes);
  /// The temporary file is whole and on disk.
  void finish();
  /// With Sums::sha256: of the file's bytes, as hexadecimal digits; after `finish`. Else "".
  std::string sha256() const;
  /// For its name; after `finish`.
  OutputFile& file() { return file_; }

 private:
  struct Inside;
  void put(const void* data, size_t bytes);
  [[noreturn]] void fail_inside(const char* what) const;

  OutputFile file_;
  std::vector<TensorEntry> entries_;
  std::map<std::string, std::string> metadata_;
  size_t next_ = 0;
  std::unique_ptr<Inside> inside_;
};

}  // namespace muonrt::tool
