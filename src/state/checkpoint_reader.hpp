#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "state/sources.hpp"

namespace muonrt {

/// Returns the file names of the manifests in a folder, newest first. Errors: IO.
std::vector<std::string> list_manifests(const std::string& folder);

/// Reads a checkpoint without an optimizer. A file that cannot be opened causes errors only for
/// tensors with elements in that file.
class CheckpointReader {
 public:
  struct Tensor {
    const ManifestParam* param;
    int32_t kind;
    /// Null if there is no data because the parameter is empty or was not saved.
    const std::string* dtype;
    /// The kind of the stored data. It is kMaster if the parameter must be computed from its master
    /// weights.
    int32_t stored;

    std::string text() const;  // for example "momentum of param 'w'"
  };
  /// The data of a tensor.
  struct Data {
    std::vector<int64_t> shape;
    int64_t bytes = 0, parts = 0;
  };

  /// @param manifest  File name of the manifest; if it is empty, the newest one is used.
  /// Errors: any error of read_manifest().
  CheckpointReader(std::string folder, const std::string& manifest);
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const Manifest& manifest() const { return manifest_; }
  const std::string& manifest_text() const { return text_; }
  /// Returns the size of all data files in bytes, according to the manifest.
  int64_t bytes() const { return bytes_; }
  /// Returns the tensors, parameter by parameter: the parameter itself, then its state, ordered by
  /// kind.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  /// Returns a tensor. Errors: INVALID_ARGUMENT if there is no tensor with this index.
  const Tensor& at(int64_t index) const;
  int64_t find(const std::string& param, int32_t kind) const;
  /// Returns false for a parameter for which only the hash was saved.
  bool has_data(const Tensor& tensor) const;

  /// Returns the data of a tensor. The data remains valid as long as this object exists. Checks the
  /// size of the data against the files before it allocates memory. Errors: IO; CORRUPT if a file
  /// is missing or damaged.
  const Data& data_of(int64_t index);
  /// Reads a whole tensor. Errors: INVALID_ARGUMENT if `to` has the wrong size or the tensor has no
  /// data; any error of data_of() or StateSources::read().
  void read(int64_t index, std::span<unsigned char> to);
  /// Opens all files again and checks every byte. Throws the first error.
  void verify();
  /// Returns all problems that the last verify() found, one per line.
  const std::string& problems() const { return problems_; }

 private:
  StateSources& sources();
  int64_t numel_of(const Tensor& tensor);
  void check_files();
  void check_values(const Tensor& tensor);
  /// Calls take(first element, values) for consecutive parts of a tensor.
  template <class Take>
  void read_values(const Tensor& tensor, int64_t numel, const Take& take);
  std::string tensors_in(const ShardFile& file, int64_t block);
  template <class Work>
  void attempt(const Work& work);
  void add_problem(const Error& problem);

  std::string folder_, path_, text_;
  Manifest manifest_;
  int64_t bytes_ = 0;
  std::vector<Tensor> tensors_;
  /// Maps a parameter to the index of its first tensor.
  std::unordered_map<std::string_view, size_t> first_;
  std::optional<StateSources> sources_;    // empty until data is needed
  std::vector<Error> file_errors_;         // one error for each file that cannot be opened
  std::vector<std::optional<Data>> data_;  // indexed by tensor
  // Results of the last verify():
  std::string problems_;
  std::optional<Error> first_problem_;
  int64_t n_problems_ = 0;
  std::set<std::pair<std::string, int32_t>> damaged_;  // pairs (parameter, kind)
};

}  // namespace muonrt
