#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "command/progress.hpp"
#include "opt_json/output_file.hpp"
#include "show/table.hpp"
#include "state/safetensors.hpp"

namespace muonrt::tool {

/// A tensor that is asked for its bytes when its place in a file has come.
struct ShardTensor {
  TensorEntry entry;
  std::function<std::vector<unsigned char>()> bytes;
};

/// A folder with models in it, each as several safetensors files and their index.
class ShardFolder {
 public:
  /// @param folder  made where there is none. @param most  bytes of the tensors of a file, unless
  /// it
  ///     has one tensor.
  /// Errors: INVALID_ARGUMENT where it holds a safetensors file or an index; IO.
  ShardFolder(std::string folder, int64_t most, Progress& progress);

  /// Writes NAME-00001-of-00002.safetensors ..., and NAME.safetensors.index.json, under temporary
  /// names. Tensor after tensor: one lies in memory at a time.
  void write(const std::string& name, std::vector<ShardTensor> tensors,
             const std::map<std::string, std::string>& metadata);
  /// All of them take their names, indices last.
  void publish();
  /// The files, with tensors and bytes of each.
  Table table() const { return table_; }

 private:
  void write_file(const std::string& name, const std::vector<ShardTensor>& tensors,
                  const std::map<std::string, std::string>& metadata);

  std::string folder_;
  int64_t most_;
  Progress& progress_;
  std::vector<std::unique_ptr<OutputFile>> files_, indices_;
  Table table_;
};

}  // namespace muonrt::tool
