#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace muonrt::tool {

/// Rows that are orthogonalized separately, in each matrix of a tensor.
struct RowBlock {
  std::string name;
  std::vector<std::pair<int64_t, int64_t>> rows;  // [begin, end), ascending
};

/// One parameter. Its shape is (out, in), or (experts, out, in) for a stack. A tensor with more
/// dimensions is a matrix whose rows are the first dimension and whose columns are all other
/// dimensions.
struct ModelTensor {
  std::string name;
  std::vector<int64_t> shape;
  bool muon = false;                 // false: AdamW updates it
  std::vector<RowBlock> parts = {};  // cover all rows; may be empty
  bool transposed = false;           // stored as (in, out)
  bool named = false;                // whether the name shows how TP shards the tensor

  /// Returns the seed for the tensor's values. It depends only on the name, and not on the index.
  uint64_t seed() const;
  bool stack() const { return muon && shape.size() == 3; }
  int64_t matrices() const;
  int64_t elements() const;
};

/// Returns the names of published language models: gpt2-124m, llama3-8b, ...
std::vector<std::string> model_names();

/// Returns the tensors of a model. `text` is the name of a published model, a file
/// (models/model_file.hpp), or a list such as "768x768x4,3072x768,53". An item of the list is rows
/// x columns x count (matrices for Muon), or one size (a vector for AdamW). Names determine the
/// roles (muonrt_routing_resolve), unless a JSON file of shapes specifies them. AdamW updates
/// tensors in which at most one dimension is larger than 1. Throws std::runtime_error with the
/// allowed forms of `text`.
/// @param notes  receives sentences about tensors that are left out; may be null.
/// @param dtype  receives the dtype of the weights in a config.json, or ""; may be null.
std::vector<ModelTensor> model_tensors(const std::string& text,
                                       std::vector<std::string>* notes = nullptr,
                                       std::string* dtype = nullptr);

struct ModelTotals {
  int64_t tensors = 0, elements = 0;
  int64_t muon_tensors = 0, muon_matrices = 0, muon_elements = 0;
};
ModelTotals totals(const std::vector<ModelTensor>& tensors);

}  // namespace muonrt::tool
