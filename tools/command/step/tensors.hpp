#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "command/info/tensor_layout.hpp"
#include "command/step/parts.hpp"
#include "muonrt/muonrt.hpp"
#include "opt_json/config.hpp"
#include "state/tensor_file.hpp"

namespace muonrt::tool {

/// One tensor of the parameter file, with its settings from opt.json.
struct StepTensor {
  const TensorEntry* entry = nullptr;
  size_t rule = 0;
  const ParamConfig* config = nullptr;
  std::string where;   // such as "opt.json: rules[1]: param 'x'", for messages
  int64_t index = -1;  // index in the optimizer; -1 if the tensor is not updated
  std::unique_ptr<TensorLayout> layout;
  std::unique_ptr<TensorLayout> grad_layout;  // null if the gradient has the parameter's layout
  bool partial = false;  // whether the file has partial gradients, named name@i
  std::vector<MatrixPart> parts;

  const TensorLayout& grads() const { return grad_layout ? *grad_layout : *layout; }
  bool steps() const { return index >= 0; }
  bool adamw() const { return *config->role == "adamw"; }
  bool stack() const { return config->is_stack(); }
  bool flatten() const { return config->is_muon() && config->view == "flatten"; }
  /// Returns the number of dimensions that form the stack; see muonrt_param_t.
  int batch_dims() const { return stack() ? static_cast<int>(config->batch_dims.value_or(1)) : 0; }
  /// Returns the number of dimensions that form the rows; see muonrt_param_t.
  int row_dims() const { return static_cast<int>(config->row_dims.value_or(1)); }
  bool transposed() const { return !adamw() && config->transposed.value_or(false); }
  /// Returns the number of rows (outputs) and the number of columns (inputs) of the matrices.
  std::pair<int64_t, int64_t> matrix_shape() const;
  bool half() const { return entry->dtype == "BF16"; }
  /// Returns whether the parameter is F16 in the file. If so, the optimizer updates f32 master
  /// weights.
  bool f16() const { return entry->dtype == "F16"; }
};

/// Returns all tensors of `params` in the order of the file, with their settings.
/// @param mesh  for example "fsdp=2,tp=2"; if empty, all ranks form one dimension `world`. Throws a
///     std::runtime_error that names the tensor and the rule.
std::vector<StepTensor> step_tensors(const TensorModel& params, const StepConfig& config,
                                     const std::string& mesh, int world);

/// Returns whether element_as_float can read values of this safetensors dtype.
bool is_float(std::string_view dtype);
/// Returns one F32, BF16 or F16 value as a float.
float element_as_float(std::string_view dtype, const unsigned char* at);

int64_t elements_of(const std::vector<Stretch>& stretches);
/// Returns the elements of a tensor that a rank holds, in the order of the rank's local buffer.
std::vector<unsigned char> cut_tensor(const TensorModel& file, const TensorEntry& entry,
                                      const std::vector<Stretch>& stretches);
/// Gathers the whole tensor on rank 0, and returns nothing on other ranks. Collective. Throws on
/// rank 0 if ranks hold different values of the same element.
/// @param local  the elements that this rank holds, in the order of its local buffer.
std::vector<unsigned char> gather_tensor(Comm& comm, const StepTensor& tensor, const void* local);

}  // namespace muonrt::tool
