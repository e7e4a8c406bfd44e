#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muonrt::tool {

/// One tensor of a model, with its name in the trainer.
struct ModelShape {
  std::string name;
  std::vector<int64_t> shape;
  bool transposed = false;  // stored as inputs x outputs
  bool stack = false;       // whether dimension 0 indexes matrices
  std::string role = {};    // "muon" or "adamw"; if empty, the name determines the role
};

/// The tensors of a model, and notes on tensors that are left out.
struct ModelShapes {
  std::vector<ModelShape> tensors;
  std::vector<std::string> notes;  // sentences for the reader of a plan
  std::string dtype = {};          // dtype of the weights in config.json, such as "bfloat16"
};

constexpr int64_t kMaxTensors = 1 << 20;  // 15 times the number in the largest model

/// Appends a tensor. If it has 2^62 elements or more, or if the model then has more than
/// kMaxTensors tensors, throws a std::runtime_error that names the tensor.
void add_tensor(ModelShapes& to, ModelShape tensor);

/// Replaces tensors with names such as "...experts.0.x" and "...experts.1.x" with one stack
/// "...experts.x", if they are matrices of the same shape and no number is missing. Adds a note
/// with the number of experts.
void stack_experts(ModelShapes& model);

}  // namespace muonrt::tool
