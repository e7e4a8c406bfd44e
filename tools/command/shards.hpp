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

/// A safetensors file that is to be.
struct Shard {
  std::string name;                  // in its folder
  std::vector<TensorEntry> entries;  // in the order of their data; offsets are set when it is made
  std::map<std::string, std::string> metadata;
};

/// NAME-00001-of-00002.safetensors ...: in order, each with at most `most` bytes of tensors, unless
/// it is one tensor; one file where there are no tensors.
std::vector<Shard> cut_into_shards(const std::string& name, const std::vector<TensorEntry>& entries,
                                   const std::map<std::string, std::string>& metadata,
                                   int64_t most);

/// Writes files, and their index, NAME.safetensors.index.json, into a folder, tensor after tensor:
/// what it has been given last is all that lies in memory.
class ShardWriter {
 public:
  /// @param sums  whether `written` is to have the SHA-256 of each file.
  ShardWriter(std::string folder, std::string name, std::vector<Shard> shards, bool sums);

  /// The data of the next tensor. Errors: IO, naming the file, as `finish`.
  void add(const void* data, int64_t bytes);
  /// All files are complete and on disk.
  void finish();

  struct Written {
    std::string name;  // in the folder
    int64_t tensors = 0, bytes = 0;
    std::string sha256 = {};  // of what has tensors
  };
  /// After `finish`; the index last.
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
  size_t left_ = 0;  // tensors of the file that is open
  Files files_;
  std::unique_ptr<OutFile> file_;
  Sha256 sum_;         // of the file
  int64_t bytes_ = 0;  // of the file
  std::vector<Written> written_;
};

}  // namespace muonrt::tool
