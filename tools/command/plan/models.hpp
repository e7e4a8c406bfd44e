#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace muonrt::tool {

/// Rows of each matrix of a tensor that are orthogonalized separately.
struct RowBlock {
  std::string name;
  std::vector<std::pair<int64_t, int64_t>> rows;  // [begin, end), ascending
};

/// One parameter: (out, in), (experts, out, in) for a stack; with more dimensions a matrix of the
/// first by all others.
struct ModelTensor {
  std::string name;
  std::vector<int64_t> shape;
  bool muon = false;                 // else AdamW: embeddings, head, norms, biases
  std::vector<RowBlock> parts = {};  // tiling the rows; none: each matrix is one part
  bool transposed = false;           // (in, out)
  bool named = false;  // the name is that of a trainer, so it says how TP shards the tensor

  /// The seed of the values that fill the tensor. It depends only on the name, not on the index.
  uint64_t seed() const;
  bool stack() const { return muon && shape.size() == 3; }
  int64_t matrices() const;
  int64_t elements() const;
};

/// The sizes of "768x768x4", or none if the text has another form or a size below 1.
std::vector<int64_t> sizes_of(const std::string& shape);

/// The names of published language models: gpt2-124m, llama3-8b, ...
std::vector<std::string> model_names();

/// The tensors of a model: a published one, a file (models/model_file.hpp), or a list
/// "768x768x4,3072x768,53" of rows x columns x how many (matrices for Muon), or one size (a vector
/// for AdamW). Roles follow from the names (muonrt_routing_resolve), except those that a JSON of
/// shapes states; a tensor with at most one dimension above 1 is for AdamW.
/// Throws std::runtime_error with the allowed forms.
/// @param notes  receives sentences about what the list leaves out; may be null.
/// @param dtype  receives the dtype of the weights that a config.json states, or ""; may be null.
std::vector<ModelTensor> model_tensors(const std::string& text,
                                       std::vector<std::string>* notes = nullptr,
                                       std::string* dtype = nullptr);

struct ModelTotals {
  int64_t tensors = 0, elements = 0;
  int64_t muon_tensors = 0, muon_matrices = 0, muon_elements = 0;
};
ModelTotals totals(const std::vector<ModelTensor>& tensors);

}  // namespace muonrt::tool
