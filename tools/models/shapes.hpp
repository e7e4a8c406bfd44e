#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muonrt::tool {

/// One tensor of a model, with the name that the trainer gives it.
struct ModelShape {
  std::string name;
  std::vector<int64_t> shape;
  bool transposed = false;  // stored as inputs x outputs
  bool stack = false;       // the first dimension counts matrices
  std::string role = {};    // "muon" or "adamw"; if "", the name decides
};

/// The tensors of a model, and notes on what the list leaves out.
struct ModelShapes {
  std::vector<ModelShape> tensors;
  std::vector<std::string> notes;  // sentences for the reader of a plan
  std::string dtype = {};          // dtype of the weights as config.json states it: "bfloat16"
};

constexpr int64_t kMaxTensors = 1 << 20;  // 15 times the number in the largest model

/// Appends a tensor. Throws a std::runtime_error that names the tensor if it has 2^62 elements or
/// more, or if the model has more than kMaxTensors tensors.
void add_tensor(ModelShapes& to, ModelShape tensor);

/// Replaces the tensors "...experts.0.x", "...experts.1.x" and so on with one stack "...experts.x",
/// if they are matrices of the same shape and no number is missing. Adds a note with the number of
/// experts.
void stack_experts(ModelShapes& model);

}  // namespace muonrt::tool
