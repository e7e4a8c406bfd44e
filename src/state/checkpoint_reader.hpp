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

/// Returns the file names of the manifests in a folder, the newest first. Errors: IO.
std::vector<std::string> list_manifests(const std::string& folder);

/// A checkpoint that is read without an optimizer. Files that cannot be opened are an error only
/// for tensors with elements in them.
class CheckpointReader {
 public:
  struct Tensor {
    const ManifestParam* param;
    int32_t kind;
    const std::string* dtype;  // null: no data, for a parameter that is empty or was not saved
    int32_t stored;  // kind of the stored data; master weights if a parameter is these, rounded

    std::string text() const;  // "momentum of param 'w'"
  };
  /// The data of a tensor.
  struct Data {
    std::vector<int64_t> shape;
    int64_t bytes = 0, parts = 0;
  };

  /// @param manifest  file name of the manifest; "": the newest. Errors: as read_manifest.
  CheckpointReader(std::string folder, const std::string& manifest);
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  const Manifest& manifest() const { return manifest_; }
  const std::string& manifest_text() const { return text_; }
  /// Bytes of all data files, as the manifest gives them.
  int64_t bytes() const { return bytes_; }
  /// The tensors, parameter by parameter: the parameter itself, and its state by kind.
  const std::vector<Tensor>& tensors() const { return tensors_; }
  /// Errors: INVALID_ARGUMENT if there is no such tensor.
  const Tensor& at(int64_t index) const;
  int64_t find(const std::string& param, int32_t kind) const;
  /// Returns false for a parameter of which only the hash is saved.
  bool has_data(const Tensor& tensor) const;

  /// Returns the data of a tensor, which is valid as long as this object. Errors: IO, CORRUPT if a
  /// file is missing or damaged, so that its bytes are never more than those of the files.
  const Data& data_of(int64_t index);
  /// Reads a whole tensor. Errors: INVALID_ARGUMENT if it has another size or no data; as data_of;
  /// as StateSources::read.
  void read(int64_t index, std::span<unsigned char> to);
  /// Opens all files again and checks every byte. Errors: the first problem.
  void verify();
  /// Returns all problems of the last `verify`, one per line.
  const std::string& problems() const { return problems_; }

 private:
  StateSources& sources();
  int64_t numel_of(const Tensor& tensor);
  void check_files();
  void check_values(const Tensor& tensor);
  /// Calls take(first element, values) for the parts of a tensor.
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
  std::unordered_map<std::string_view, size_t> first_;  // index of a parameter's first tensor
  std::optional<StateSources> sources_;                 // empty until data is needed
  std::vector<Error> file_errors_;                      // of files that cannot be opened
  std::vector<std::optional<Data>> data_;               // by tensor
  // Of the last `verify`:
  std::string problems_;
  std::optional<Error> first_problem_;
  int64_t n_problems_ = 0;
  std::set<std::pair<std::string, int32_t>> damaged_;  // parameter and kind
};

}  // namespace muonrt
