#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/thread_transport.hpp"
#include "optimizer/optimizer.hpp"

/// Runs complete optimizers on several ranks. Initial values and gradients are functions of the
/// element's index, so every rank can compute them. Tests assemble the results of all ranks and
/// compare them bit by bit, or compare them with the reference implementation.
namespace world {

/// A parameter of a case. By default, `placements` and the mesh of the case determine its layout.
struct Param {
  std::string name;
  std::vector<int64_t> shape;
  muonrt::Role role = muonrt::Role::kMuon;
  muonrt::DType dtype = muonrt::DType::kF32, grad_dtype = muonrt::DType::kF32;
  // one for each mesh dimension; dimensions without a placement replicate
  std::vector<muonrt::Placement> placements;
  muonrt::Reading reading = muonrt::Reading::kLiteral;
  /// If set, this function creates the layout, and `placements` has no effect.
  std::function<muonrt::Layout(std::shared_ptr<const muonrt::Mesh>, std::vector<int64_t>)>
      make_layout;
  /// The layout of the gradient, as placements or as a function that creates it. By default, it is
  /// the layout of the parameter.
  std::vector<muonrt::Placement> grad_placements;
  std::function<muonrt::Layout(std::shared_ptr<const muonrt::Mesh>, std::vector<int64_t>)>
      make_grad_layout;
  muonrt::View view = muonrt::View::kNone;
  int batch_dims = 0, row_dims = 0;  // as in muonrt_param_t
  bool transposed = false;
  std::vector<muonrt::PartSettings> parts;
  int owner = -1;
  muonrt::MasterKind master_kind = muonrt::MasterKind::kAuto;
  double lr_factor = 1.0;
  int32_t priority = 0;
  /// If > 0, the gradient is the sum of this number of partial gradients in `partial_grad_dtype`.
  /// If the layout has partial dimensions over this number of ranks, each rank holds one partial
  /// gradient. Otherwise each rank holds the sum, computed in f32 in the order of the partial
  /// gradients.
  int partial_grads = 0;
  muonrt::DType partial_grad_dtype = muonrt::DType::kF32;
  muonrt::NormuonAxis normuon_axis = muonrt::NormuonAxis::kOff;
  muonrt::QkClipSettings qk_clip;
};

/// Returns a matrix for Muon with these placements and default settings.
inline Param matrix(std::string name, std::vector<int64_t> shape,
                    std::vector<muonrt::Placement> placements) {
  Param p;
  p.name = std::move(name);
  p.shape = std::move(shape);
  p.placements = std::move(placements);
  return p;
}

struct Case {
  std::vector<int64_t> mesh = {1};
  std::vector<int32_t> rank_array;  // empty means 0, 1, 2, ...
  int world = 1;                    // number of ranks; may be larger than the mesh
  std::vector<Param> params;
  muonrt::OptimizerSettings settings;  // if it contains no groups, default_groups() are used
  int steps = 5;
  double lr = 0.02;
  std::vector<std::vector<int64_t>> inactive_params;  // indexed by step
  /// Changes the arguments of a step on a rank; may be empty.
  std::function<void(muonrt::StepArgs&, int64_t step, int rank)> arguments;
  /// Changes the settings of a rank; may be empty.
  std::function<void(muonrt::OptimizerSettings&, int rank)> adjust;
  bool async = false;  // whether steps use Optimizer::step_async and wait

  std::string describe() const;
};

/// Returns a case with this mesh and without parameters.
/// @param rank_array  The ranks of the mesh; an empty list means 0, 1, 2, ...
Case on_mesh(std::vector<int64_t> mesh, std::vector<int32_t> rank_array = {});

/// Returns `layout` after applying the parameter's view, which defines the matrices.
muonrt::Layout viewed(const Param& param, const muonrt::Layout& layout);

/// Returns the layout of the parameter, without its view.
muonrt::Layout layout_of(const Param& param, const std::shared_ptr<const muonrt::Mesh>& mesh);

/// Returns the layout of the parameter's gradient, without the parameter's view.
muonrt::Layout grad_layout_of(const Param& param, const std::shared_ptr<const muonrt::Mesh>& mesh);

/// Calls `visit(index in the whole tensor, index in the shard)` for each element that `rank` holds.
void for_each_element(const muonrt::Layout& layout, int rank,
                      const std::function<void(int64_t, int64_t)>& visit);

/// Whole tensors as bytes, indexed by parameter. `variance` is empty for Muon parameters, and
/// `remainder` for parameters without a remainder.
struct Tensors {
  std::vector<std::vector<unsigned char>> params, momentum, variance, remainder;
  bool operator==(const Tensors&) const = default;
};

/// Returns the value of an element of a parameter (`step` < 0) or of its gradient in a step. The
/// value is in [-1, 1). f32 can represent it exactly, and bf16 usually cannot.
float value(int64_t param, int64_t element, int64_t step);

/// Returns an element of a partial gradient, rounded to `dtype`.
float partial_grad_value(int64_t param, int64_t element, int64_t step, int64_t partial_grad,
                         muonrt::DType dtype);

/// A function that creates the device of a rank. Default: a host device.
using MakeDevice = muonrt::Optimizer::MakeDevice;
std::unique_ptr<muonrt::Device> host_device(const muonrt::OptimizerSettings& settings);

/// Device memory that the host cannot access, for the parameters and gradients of a rank.
class Mirror {
 public:
  virtual ~Mirror() = default;
  // Returns memory that is freed together with the mirror, or null if `bytes` is 0.
  virtual void* make(int64_t bytes) = 0;
  virtual void put(void* to, const void* from, int64_t bytes) = 0;
  virtual void get(void* to, const void* from, int64_t bytes) = 0;
};

/// One rank with its shards and its optimizer. Provides access to the rank's state between steps.
class Rank {
 public:
  /// @param mirror  The memory of the optimizer's buffers. If it is null, the optimizer uses the
  ///     shards directly.
  Rank(const Case& of, muonrt::Comm& comm, const MakeDevice& make_device = host_device,
       Mirror* mirror = nullptr);

  /// Fills the gradients of `step` and runs the step.
  muonrt::Status step(int64_t step, muonrt::StepReport& report);
  void fill_gradients(int64_t step);
  /// Runs the step with the current gradients.
  muonrt::Status step_only(int64_t step, muonrt::StepReport& report);

  muonrt::Optimizer& optimizer() { return *optimizer_; }
  const muonrt::Layout& layout(int64_t param) const { return layouts_[static_cast<size_t>(param)]; }
  std::vector<unsigned char>& data(int64_t param) { return data_[static_cast<size_t>(param)]; }
  std::vector<unsigned char>& grad(int64_t param) { return grads_[static_cast<size_t>(param)]; }
  std::vector<unsigned char> state(int64_t param, muonrt::StateKind kind);
  /// Copies the shards of this rank into whole tensors. Returns false if another replica has
  /// already copied a different value of an element. `seen` must be empty in the first call.
  bool add_to(Tensors& full, std::vector<std::vector<bool>>& seen);
  /// Copies the shards of this rank into `full` and returns the result.
  Tensors tensors(Tensors full = {}) {
    std::vector<std::vector<bool>> seen;
    add_to(full, seen);
    return full;
  }

 private:
  void make_buffers();
  void mirror_buffers();
  void read_data();
  float gradient(int64_t param, int64_t element, int64_t step) const;
  const muonrt::Layout& grad_layout(int64_t param) const {
    return grad_layouts_[static_cast<size_t>(param)];
  }
  /// Returns whether the owners hold the parameter's state. Otherwise the ranks that hold shards of
  /// the parameter also hold its state.
  bool keeps(int64_t param) const {
    return !grad_layout(param).partial_dims().empty() || !(grad_layout(param) == layout(param));
  }
  void add_owner_state(int64_t param, Tensors& full);
  void visit(int64_t param, const std::function<void(int64_t, int64_t)>& visit) const {
    for_each_element(layouts_[static_cast<size_t>(param)], rank_, visit);
  }

  const Case* case_;
  int rank_;
  Mirror* mirror_;
  std::vector<void*> far_data_, far_grads_;  // used if there is a mirror
  std::vector<muonrt::Layout> layouts_, grad_layouts_;
  std::vector<std::vector<unsigned char>> data_, grads_;
  std::unique_ptr<muonrt::Optimizer> optimizer_;
};

/// Runs `work` on every rank of a thread group. If ranks fail, throws the exception of the lowest
/// rank that failed, but a failed check (rank_check.hpp) takes precedence over other exceptions. If
/// there are several ranks, `work` must not use Catch2 assertions, which work only in one thread.
void on_ranks(int world, const std::function<void(muonrt::Comm&)>& work,
              muonrt::ThreadFaults faults = {});

/// Runs `script` on all ranks and assembles their tensors. Throws the error of the first rank that
/// fails, or std::runtime_error if replicas differ.
Tensors tensors_after(const Case& of, const std::function<void(Rank&, muonrt::Comm&)>& script,
                      const MakeDevice& make_device = host_device,
                      muonrt::ThreadFaults faults = {});

/// The result after the steps of the case.
struct Outcome {
  Tensors tensors;
  std::vector<muonrt::StepReport> reports;  // of rank 0, indexed by step
};
Outcome run(const Case& of, const MakeDevice& make_device = host_device,
            muonrt::ThreadFaults faults = {});

/// Returns groups 0 (Muon) and 1 (AdamW) with their defaults.
std::vector<muonrt::GroupSettings> default_groups();

}  // namespace world
