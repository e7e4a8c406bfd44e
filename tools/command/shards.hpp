#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/sha256.hpp"
#include "state/files.hpp"
#include "state/safetensors.hpp"

namespace muonrt::tool {

/// A safetensors file that a ShardWriter will write.
struct Shard {
  std::string name;                  // file name in its folder
  std::vector<TensorEntry> entries;  // in the order of their data; the writer sets the offsets
  std::map<std::string, std::string> metadata;
};

/// Distributes tensors in the given order over files named NAME-00001-of-00002.safetensors and so
/// on. Each file contains at most `most` bytes of tensors, or a single larger tensor. If there are
/// no tensors, creates one file.
std::vector<Shard> cut_into_shards(const std::string& name, const std::vector<TensorEntry>& entries,
                                   const std::map<std::string, std::string>& metadata,
                                   int64_t most);

/// Returns the SHA-256 of a text in hexadecimal digits.
std::string sha256_of(const std::string& text);

/// Writes files and their index, NAME.safetensors.index.json, to a folder. Writes each tensor
/// immediately, and keeps none in memory.
class ShardWriter {
 public:
  /// @param sums  whether to compute the SHA-256 of each file; written() returns the hashes.
  ShardWriter(std::string folder, std::string name, std::vector<Shard> shards, bool sums);

  /// Writes the data of the next tensor. Errors: IO, with the name of the file.
  void add(const void* data, int64_t bytes);
  /// Completes all files and writes them to disk. Errors: any error of `add`.
  void finish();

  struct Written {
    std::string name;  // file name in the folder
    int64_t tensors = 0, bytes = 0;
    std::string sha256 = {};  // set only for files with tensors
  };
  /// Returns the files, with the index last. Call this function after `finish`.
  const std::vector<Written>& written() const { return written_; }

 private:
  void next();
  void finish_last();
  void write_index();
  void open(const std::string& name);
  void append(const void* data, int64_t bytes);
  void close(const std::string& name, int64_t tensors, bool sums);

  std::string folder_, name_;
  std::vector<Shard> shards_;
  bool sums_;
  size_t left_ = 0;  // number of tensors that are missing from the open file
  Files files_;
  std::unique_ptr<OutFile> file_;
  Sha256 sum_;         // hash of the open file
  int64_t bytes_ = 0;  // size of the open file
  std::vector<Written> written_;
};

}  // namespace muonrt::tool
