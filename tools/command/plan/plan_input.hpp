#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "command/plan/meshes.hpp"
#include "command/plan/models.hpp"
#include "command/step/parts.hpp"
#include "muonrt/muonrt.hpp"
#include "opt_json/bind.hpp"
#include "opt_json/config.hpp"

namespace muonrt::tool {

/// Placements in the notation of `muonrt layout --placements`. If `params` is empty, the dimension
/// names of the mesh determine the placements. If `grads` is empty, gradients have the placements
/// of their parameters.
struct PlacementWords {
  std::string params, grads, reading = "literal";
};

/// The dtypes of the trainer's tensors and the kind of master weights, as C values.
struct TensorTypes {
  int32_t dtype = MUONRT_DTYPE_F32, grad_dtype = 0;
  int32_t master_kind = MUONRT_MASTER_AUTO;
};

/// The groups and parameters of an optimizer for a list of tensors, without buffers.
class PlanInput {
 public:
  /// Throws a std::runtime_error that names the tensor or the option.
  /// @param config  an opt.json with roles and settings; if null, the defaults apply.
  PlanInput(const std::vector<ModelTensor>& tensors, const PlanMeshes& meshes,
            const PlacementWords& words, const TensorTypes& types, const StepConfig* config);

  /// @param options  the optimizer options, for example those of options_of().
  Plan plan(OptimizerOptions options) const;
  /// Returns the optimizer options in `config`, or the defaults.
  const OptimizerOptions& options() const { return options_; }
  const ModelTotals& totals() const { return totals_; }
  int64_t frozen() const { return frozen_; }  // tensors

 private:
  /// The objects that the C struct of a parameter points to.
  struct Storage {
    std::vector<muonrt_placement_t> params, grads;
    muonrt_layout_t layout, grad_layout;
    std::vector<MatrixPart> parts;
    std::vector<muonrt_part_t> c_parts;
  };
  void choose_rules(const std::vector<ModelTensor>& tensors);
  void add(const ModelTensor& tensor, const PlacementWords& words, const TensorTypes& types);
  void take_layouts(muonrt_param_t& p, Storage& s, const ModelTensor& tensor,
                    const PlacementWords& words);
  void take_rule(muonrt_param_t& p, Storage& s, const ModelTensor& tensor, size_t rule);

  const PlanMeshes& meshes_;
  const StepConfig* config_;
  std::vector<size_t> used_;      // indices of rules, ascending
  std::vector<BoundRule> rules_;  // the rules of `used_`
  OptimizerOptions options_;
  muonrt_mesh_t dense_, experts_;
  std::vector<muonrt_group_t> groups_;
  std::deque<Storage> storage_;
  std::vector<muonrt_param_t> params_;
  ModelTotals totals_;
  int64_t frozen_ = 0;
};

}  // namespace muonrt::tool
