#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "command/step/writer.hpp"

namespace muonrt::tool {

/// A safetensors file that is to be.
struct Shard {
  std::string path;
  std::vector<TensorEntry> entries;  // in the order of their data; offsets are set when it is made
  std::map<std::string, std::string> metadata;
};

/// FOLDER/NAME-00001-of-00002.safetensors ...: in order, each with at most `most` bytes of tensors,
/// unless it is one tensor; one file where there are no tensors.
std::vector<Shard> cut_into_shards(const std::string& folder, const std::string& name,
                                   const std::vector<TensorEntry>& entries,
                                   const std::map<std::string, std::string>& metadata,
                                   int64_t most);

/// FOLDER/NAME.safetensors.index.json.
std::string index_path(const std::string& folder, const std::string& name);

/// Errors: INVALID_ARGUMENT, beginning with `option`, where the folder, which is made where there
/// is none, holds a safetensors file or an index of one that is not in `replaced`.
void require_no_model(const std::string& option, const std::string& folder,
                      const std::set<std::string>& replaced = {});

/// Writes files, and their index, tensor after tensor: one is open at a time, and what it has been
/// given last is all that lies in memory.
class ShardWriter {
 public:
  /// @param index  its path; "": none.
  ShardWriter(std::vector<Shard> shards, std::string index, Sums sums);

  /// The data of the next tensor. Throws std::runtime_error that names the file, as `finish`.
  void add(const void* data, int64_t bytes);
  /// All are whole and on disk.
  void finish();

  /// After `finish`. @return  the tensors' files, the index last.
  std::vector<OutputFile*> files();
  struct Written {
    std::string name;  // in its folder
    int64_t tensors = 0, bytes = 0;
    std::string sha256 = {};  // with Sums::sha256, of what has tensors
  };
  /// In the same order.
  const std::vector<Written>& written() const { return written_; }

 private:
  void next();
  void finish_last();
  void write_index();

  std::vector<Shard> shards_;
  std::string index_path_;
  Sums sums_;
  size_t left_ = 0;  // tensors of the file that is open
  std::vector<std::unique_ptr<TensorWriter>> writers_;
  std::unique_ptr<OutputFile> index_;
  std::vector<Written> written_;
};

}  // namespace muonrt::tool
