#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "state/safetensors.hpp"

namespace muonrt {

/// A file in memory, as it was when it was opened; the file itself is closed again. Where somebody
/// cuts it short meanwhile, or the disk fails, a read of it ends the process (SIGBUS).
class MappedFile {
 public:
  /// Errors: IO, naming the file: none, no regular one, not readable.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const unsigned char> bytes() const {
    return {static_cast<const unsigned char*>(data_), size_};
  }
  std::string_view text() const { return {static_cast<const char*>(data_), size_}; }
  /// What was read need not stay in memory; the next reader takes it from the file again.
  void release_pages() const;

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

/// A safetensors file. Calls from several threads are fine.
class TensorFile {
 public:
  /// Errors: as MappedFile, header_bytes, parse_tensor_table.
  explicit TensorFile(std::string path);

  const std::string& path() const { return path_; }
  const TensorTable& table() const { return table_; }
  std::span<const unsigned char> header() const { return map_.bytes().first(data_at_); }
  /// What follows the header.
  std::span<const unsigned char> data() const { return map_.bytes().subspan(data_at_); }
  void release_pages() const { map_.release_pages(); }

 private:
  std::string path_;
  MappedFile map_;
  size_t data_at_ = 0;
  TensorTable table_;
};

/// The tensors of one file, or of several as one.
class TensorModel {
 public:
  /// @param path  a safetensors file; an index (*.json, whose "weight_map" names the file of each
  ///     tensor); or a folder: by its model.safetensors.index.json, else all *.safetensors in it.
  /// Errors: as TensorFile; CORRUPT for an index that is none, or does not fit its files;
  /// INVALID_ARGUMENT where two files have a tensor of one name, or a folder has none.
  explicit TensorModel(std::string path);

  const std::string& path() const { return path_; }
  /// File by file, in each in the order of its data. The metadata are what all files agree on.
  const TensorTable& table() const { return table_; }
  /// Errors: INVALID_ARGUMENT where there is none.
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
