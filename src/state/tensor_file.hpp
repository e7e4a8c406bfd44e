#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "state/safetensors.hpp"

namespace muonrt {

/// A file that is mapped into memory. If the file is truncated or the disk fails later, reading the
/// memory terminates the process with SIGBUS.
class MappedFile {
 public:
  /// Maps the file. Errors: IO, with the name of the file, if the file does not exist, is not a
  /// regular file, or cannot be read.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const unsigned char> bytes() const {
    return {static_cast<const unsigned char*>(data_), size_};
  }
  std::string_view text() const { return {static_cast<const char*>(data_), size_}; }
  /// Allows the system to remove the file's pages from memory. Later reads load them again.
  void release_pages() const;

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

/// A safetensors file. Any thread may use it.
class TensorFile {
 public:
  /// Maps the file and parses its header. Errors: any error of MappedFile, header_bytes() or
  /// parse_tensor_table().
  explicit TensorFile(std::string path);

  const std::string& path() const { return path_; }
  const TensorTable& table() const { return table_; }
  std::span<const unsigned char> header() const { return map_.bytes().first(data_at_); }
  /// Returns the bytes after the header.
  std::span<const unsigned char> data() const { return map_.bytes().subspan(data_at_); }
  void release_pages() const { map_.release_pages(); }

 private:
  std::string path_;
  MappedFile map_;
  size_t data_at_ = 0;
  TensorTable table_;
};

/// The tensors of one or more files.
class TensorModel {
 public:
  /// @param path  A safetensors file, an index or a folder. An index is a *.json file whose
  ///     "weight_map" names the file of each tensor. In a folder, the constructor reads
  ///     model.safetensors.index.json or, if that does not exist, all *.safetensors files.
  /// Errors: any error of TensorFile; CORRUPT if the index is invalid or does not match its files;
  /// INVALID_ARGUMENT if two files contain a tensor with the same name, or a folder contains no
  /// safetensors file.
  explicit TensorModel(std::string path);

  const std::string& path() const { return path_; }
  /// Returns all tensors, file by file and in the order of their data, with the metadata that is
  /// equal in all files.
  const TensorTable& table() const { return table_; }
  /// Returns a tensor. Errors: INVALID_ARGUMENT if there is no tensor with this name.
  const TensorEntry& at(const std::string& name) const;
  std::span<const unsigned char> bytes(const TensorEntry& entry) const;
  const std::vector<std::unique_ptr<TensorFile>>& files() const { return files_; }

 private:
  void add_files(const std::vector<std::string>& paths);
  void add_index(const std::string& path);
  void add_folder();

  std::string path_;
  std::vector<std::unique_ptr<TensorFile>> files_;
  TensorTable table_;
};

}  // namespace muonrt
