#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "algo/coefficients.hpp"
#include "algo/newton_schulz.hpp"
#include "algo/update_scale.hpp"
#include "backend/cuda_device.hpp"
#include "backend/qk_clip.hpp"
#include "base/dtype.hpp"
#include "layout/layout.hpp"
#include "pipeline/exchange_callbacks.hpp"
#include "plan/problem.hpp"

namespace muonrt {

enum class MomentumKind : int32_t {
  kEma = 0,
  kHeavyBall = 1,
  kEmaCorrected = 2  // as kEma, with a bias correction of the direction
};
enum class MasterKind : int32_t {
  kAuto = 0,
  kNone = 1,
  kOwned = 2,
  kCaller = 3,
  kRemainder = 4,
  kStochastic = 5
};
enum class WeightDecayKind : int32_t {
  kDecoupled = 0,
  kIndependent = 1,
  kLrSquared = 2,
  kCautious = 3
};
/// Whether rows or columns are the neurons of NorMuon. kOff in a part or parameter means the
/// setting of its parameter or group.
enum class NormuonAxis : int32_t { kOff = 0, kRows = 1, kColumns = 2, kLonger = 3 };
enum class AdamForm : int32_t { kTorch = 0, kFolded = 1, kNesterov = 2 };
/// When replicas are compared: in the first step until it is committed (also after a resume), in
/// every step, or never.
enum class ReplicaCheck : int32_t { kFirst = 0, kEvery = 1, kOff = 2 };
enum class DeviceKind : int32_t { kHost = 0, kCuda = 1 };
/// Block-periodic orthogonalization: steps 0, period, 2 period, ... orthogonalize whole matrices,
/// the other steps the blocks of a grid over the global matrix. Source: MuonBP, arXiv 2510.16981.
struct BlockGrid {
  int period = 1;
  int rows = 1, cols = 1;  // number of blocks along rows and columns
  double lr_factor = 1.0;  // on block steps
};

enum class StateKind : int32_t {
  kMomentum = 0,
  kVariance = 1,
  kMaster = 2,
  kRemainder = 3,
  kNormuon = 4
};

/// Settings that parameters share: the C struct muonrt_group_t in internal types.
struct GroupSettings {
  Role role = Role::kMuon;
  std::string name;
  double lr_factor = 1.0;
  double weight_decay = 0.1;
  double momentum = 0.95;
  MomentumKind momentum_kind = MomentumKind::kEma;
  bool nesterov = true;
  CoefficientFamily coefficients = CoefficientFamily::kPolarExpress;
  int steps = 5;
  double lower_bound = 1e-3, cushion = 0.02;
  double safety = 0;  // 0: the default of the family
  SafetyMode safety_mode = SafetyMode::kAuto;
  std::vector<Coefficients> custom;
  Normalize normalize = Normalize::kPrescaled;
  double normalize_eps = 1e-7;
  RowScaling row_scaling = RowScaling::kNone;
  bool renormalize = false;
  std::optional<std::vector<int>> gram_restarts;  // of the Gram form; absent: searched
  std::optional<DType> iteration_dtype;           // of both forms; absent: the optimizer's
  BlockGrid blocks;
  ScaleRule scale_rule = ScaleRule::kMatchRms;
  FormChoice form = FormChoice::kAuto;
  double scale_factor = 1.0;
  double beta1 = 0.9, beta2 = 0.95, adamw_eps = 1e-8;
  WeightDecayKind weight_decay_kind = WeightDecayKind::kDecoupled;
  AdamForm adam_form = AdamForm::kTorch;
  int32_t update_every = 1;
  DType momentum_dtype = DType::kF32;
  NormuonAxis normuon_axis = NormuonAxis::kOff;
  double normuon_beta2 = 0.95;

  static GroupSettings defaults(Role role);
};

enum class View : int32_t { kNone = 0, kStack = 1, kFlatten = 2 };

/// Rows and columns of each matrix that are orthogonalized as a separate matrix.
struct PartSettings {
  std::string name;
  Runs rows, cols;
  double scale_factor = 1.0;
  double lr_factor = 1.0;
  NormuonAxis normuon_axis = NormuonAxis::kOff;
};

/// Settings of QK-clip for a parameter; the sizes have the same meaning as in QkClip.
struct QkClipSettings {
  QkKind kind = QkKind::kNone;
  int32_t layer = 0, heads = 0, kv_heads = 0, head_dim = 0, nope = 0, rope = 0, v_dim = 0;
  bool selects = false;    // true: only the heads in `select`
  bool from_name = false;  // whether the layer was read from the parameter's name
  std::vector<int32_t> select;
  double threshold = 100.0, exponent = 0.5;
};

/// One parameter on this rank. The buffers belong to the caller.
struct ParamSettings {
  std::string name;
  int32_t group = 0;
  DType dtype = DType::kF32, grad_dtype = DType::kF32;
  Layout layout;                      // contains the global shape
  std::optional<Layout> grad_layout;  // of the gradient, if its shards differ from `layout`
  std::vector<int64_t> local_shape;   // as the caller states it; compared if local_shape_given
  bool local_shape_given = false;
  void* data = nullptr;
  const void* grad = nullptr;
  MasterKind master_kind = MasterKind::kAuto;
  float* master = nullptr;
  int owner = -1;
  std::vector<int32_t> owners;  // by matrix of a stack, instead of `owner`; empty: none
  int32_t priority = 0;         // parameters with lower numbers are exchanged first
  View view = View::kNone;      // applied already: `layout` is 2-D, or 3-D for kStack
  bool transposed = false;      // true: stored as inputs x outputs
  std::vector<PartSettings> parts;
  double lr_factor = 1.0;
  NormuonAxis normuon_axis = NormuonAxis::kOff;
  QkClipSettings qk_clip;
};

/// Chooses the owners of a Muon parameter. It is called once for each at creation, in their order.
/// @param holders  the ranks that hold elements of the parameter, ascending.
/// @param owner    one entry for each matrix, -1 at first. If only the first one is set, it is the
///     owner of all.
/// @return  0, or an error code. The creation then fails.
using AssignOwner = std::function<int(int64_t param, const ParamSettings& info,
                                      const std::vector<int32_t>& holders, int32_t* owner)>;

struct OptimizerSettings {
  /// Defaults for a kind of device.
  static OptimizerSettings defaults(DeviceKind kind);

  DeviceKind device = DeviceKind::kHost;
  int device_index = 0;
  int threads = 0;  // 0: chosen at creation, see threads_of()
  DType transport_dtype = DType::kBF16;
  DType iteration_dtype = DType::kF32;
  std::optional<DType> gram_iteration_dtype;  // absent: iteration_dtype
  CommitMode commit = CommitMode::kAtomic;
  int window = 3;
  ReplicaMode replica_mode = ReplicaMode::kOnce;
  int max_peers = 0;                                                 // see PlanOptions
  double machine_flops = 0, machine_bytes = 0, machine_message = 0;  // 0: the device's default
  int64_t chunk_bytes = 64 << 20;
  int64_t timeout_ms = 600000;
  bool trace = false;
  bool portable_gemm = false;
  // For CUDA only; see CudaSettings.
  SymmetricProvider symmetric = SymmetricProvider::kDefault;
  bool graphs = false;
  // Before a step, compare which parameters are inactive, and do not exchange them. For all
  // devices.
  bool omit_inactive = false;
  int reserved_sms = 0;                  // Optimizer::create sets it from the communicator
  Allocator allocator = {};              // no functions: the allocator of the device
  AssignOwner assign_owner;              // empty: the plan chooses owners
  ExchangeCallbacks exchange_callbacks;  // empty: the built-in exchanges
  bool serial = false;       // one parameter and one stage at a time, for debugging; results are
                             // bitwise identical
  bool poison = false;       // fill messages and scratch with NaN before every step
  int64_t seed = 0;          // of stochastic rounding
  double clip_norm = 0.0;    // of all gradients; 0: not clipped
  int64_t health_every = 0;  // every n-th step collects statistics; 0: no step does
  ReplicaCheck replica_check = ReplicaCheck::kFirst;
  std::vector<GroupSettings> groups;
  std::vector<ParamSettings> params;
};

/// Arguments of one step.
struct StepArgs {
  double lr = 0.0;
  std::vector<double> group_lrs;  // by group, instead of `lr`; empty: `lr` for all
  double grad_scale_inv = 1.0;
  std::vector<int64_t> inactive_params;
  // In memory that the device reads; null: absent.
  const float* device_grad_scale_inv = nullptr;
  const float* grad_multiplier = nullptr;
  const float* found_inf = nullptr;
  const float* qk_logits = nullptr;  // the largest logit of each query head, by layer
  int64_t n_qk_logits = 0;
  void* stream = nullptr;  // the caller's stream that writes the gradients; see
                           // Device::wait_caller_stream

  double lr_of(int64_t group) const {
    return group_lrs.empty() ? lr : group_lrs[static_cast<size_t>(group)];
  }
};

/// Returns the number of matrices of a Muon parameter before parts: 1, or the size of the stack.
inline int64_t stack_size(const ParamSettings& p) {
  return p.view == View::kStack ? p.layout.shape()[0] : 1;
}

/// Returns the ranks that hold elements of each matrix, ascending.
std::vector<std::vector<int32_t>> holders_of_matrices(const ParamSettings& p, int world);

/// Sets the owner of every Muon parameter with `assign_owner`, if it is set. Errors: CALLBACK if
/// the function returns an error; INVALID_ARGUMENT if it returns no rank, or if the parameter
/// already has an owner.
void assign_owners(OptimizerSettings& settings, int world);

/// Checks everything that one rank can check without the others.
/// Errors: INVALID_ARGUMENT or NOT_SUPPORTED, naming the parameter or group, the field and the
/// values.
void validate(const OptimizerSettings& settings, int rank, int world);
void validate(const GroupSettings& group, const std::string& who);

/// Copies the settings that may change between steps from `given` to `current`.
/// Errors: INVALID_ARGUMENT if a fixed setting differs; `current` is then unchanged.
void change(GroupSettings& current, const GroupSettings& given, const std::string& who);

/// Errors: INVALID_ARGUMENT, with the prefix `where`, if there is no such parameter.
void require_param(const OptimizerSettings& settings, int64_t param, const char* where = "");

inline const GroupSettings& group_of(const OptimizerSettings& settings, int64_t param) {
  return settings.groups[static_cast<size_t>(settings.params[static_cast<size_t>(param)].group)];
}

/// The number of outputs and inputs of a Muon parameter's matrices, whether they are stored
/// transposed or not. Parts and all settings count outputs as rows and inputs as columns.
inline std::pair<int64_t, int64_t> outputs_and_inputs(const ParamSettings& p) {
  const auto& shape = p.layout.shape();
  const int64_t rows = shape[shape.size() - 2], cols = shape.back();
  return p.transposed ? std::pair(cols, rows) : std::pair(rows, cols);
}

/// The layout of the gradient.
inline const Layout& grad_layout(const ParamSettings& p) {
  return p.grad_layout ? *p.grad_layout : p.layout;
}

/// Sets the layout of the gradient. If it differs from `p.layout` only in partial dimensions, these
/// become part of `p.layout`. Otherwise it becomes `p.grad_layout`.
/// Errors: INVALID_ARGUMENT if `p.layout` already has partial dimensions.
void take_grad_layout(ParamSettings& p, Layout layout);

/// Whether muonrt owns f32 master weights for `param`.
bool owns_master(const ParamSettings& param);

/// The factor on a group's decay for a parameter whose rate has the factor `lr_factor`.
double decay_scale(WeightDecayKind kind, double lr_factor);

const char* name_of(MasterKind kind);

}  // namespace muonrt
