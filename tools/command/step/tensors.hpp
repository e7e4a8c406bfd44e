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

/// One tensor of the parameter file with its settings from opt.json.
struct StepTensor {
  const TensorEntry* entry = nullptr;
  size_t rule = 0;
  const ParamConfig* config = nullptr;
  std::string where;   // "opt.json: rules[1]: param 'x'", for messages
  int64_t index = -1;  // among the parameters of the optimizer; -1: it is not updated
  std::unique_ptr<TensorLayout> layout;
  std::unique_ptr<TensorLayout> grad_layout;  // null: the gradient has the parameter's layout
  bool partial = false;                       // gradients are partial, in tensors called name@i
  std::vector<MatrixPart> parts;

  const TensorLayout& grads() const { return grad_layout ? *grad_layout : *layout; }
  bool steps() const { return index >= 0; }
  bool adamw() const { return *config->role == "adamw"; }
  bool stack() const { return config->is_stack(); }
  bool flatten() const { return config->is_muon() && config->view == "flatten"; }
  /// The number of dimensions of the stack, and that of the rows; see muonrt_param_t.
  int batch_dims() const { return stack() ? static_cast<int>(config->batch_dims.value_or(1)) : 0; }
  int row_dims() const { return static_cast<int>(config->row_dims.value_or(1)); }
  bool transposed() const { return !adamw() && config->transposed.value_or(false); }
  /// Rows and columns of the matrices, outputs x inputs.
  std::pair<int64_t, int64_t> matrix_shape() const;
  bool half() const { return entry->dtype == "BF16"; }
  /// Whether the optimizer has f32 master weights as the parameter, which files hold in F16.
  bool f16() const { return entry->dtype == "F16"; }
};

/// Every tensor of `params` in the order of the file.
/// @param mesh  "fsdp=2,tp=2"; "": the ranks as one dimension `world`.
/// Throws std::runtime_error that names tensor and rule.
std::vector<StepTensor> step_tensors(const TensorModel& params, const StepConfig& config,
                                     const std::string& mesh, int world);

/// Whether element_as_float can read values of a dtype of safetensors.
bool is_float(std::string_view dtype);
/// One value of F32, BF16 or F16.
float element_as_float(std::string_view dtype, const unsigned char* at);

int64_t elements_of(const std::vector<Stretch>& stretches);
/// The elements of a tensor that a rank holds, in its local order.
std::vector<unsigned char> cut_tensor(const TensorModel& file, const TensorEntry& entry,
                                      const std::vector<Stretch>& stretches);
/// Collective: the whole tensor on rank 0, nothing on the other ranks. Throws on rank 0 if ranks
/// hold different values of one element.
/// @param local  the elements that this rank holds, in its local order.
std::vector<unsigned char> gather_tensor(Comm& comm, const StepTensor& tensor, const void* local);

}  // namespace muonrt::tool
