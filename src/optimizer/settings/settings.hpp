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
  kEmaCorrected = 2  // like kEma, with a bias correction of the direction
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
/// Selects whether rows or columns are the neurons of NorMuon. In a parameter, kOff means that the
/// setting of its group applies. In a part, kOff means that the setting of its parameter applies.
enum class NormuonAxis : int32_t { kOff = 0, kRows = 1, kColumns = 2, kLonger = 3 };
enum class AdamForm : int32_t { kTorch = 0, kFolded = 1, kNesterov = 2 };
/// Selects when replicas are compared: in every step up to the first committed one (kFirst; this
/// repeats after a resume), in every step (kEvery), or never (kOff).
enum class ReplicaCheck : int32_t { kFirst = 0, kEvery = 1, kOff = 2 };
enum class DeviceKind : int32_t { kHost = 0, kCuda = 1 };
/// Block-periodic orthogonalization. Steps 0, period, 2 period, ... orthogonalize whole matrices.
/// All other steps orthogonalize the blocks of a grid over the global matrix. Source: MuonBP, arXiv
/// 2510.16981.
struct BlockGrid {
  int period = 1;
  int rows = 1, cols = 1;  // number of blocks along the rows and along the columns
  double lr_factor = 1.0;  // learning-rate factor in block steps
};

enum class StateKind : int32_t {
  kMomentum = 0,
  kVariance = 1,
  kMaster = 2,
  kRemainder = 3,
  kNormuon = 4
};

/// Settings that multiple parameters share. Corresponds to the C struct muonrt_group_t.
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
  double safety = 0;  // 0 means the default of the family
  SafetyMode safety_mode = SafetyMode::kAuto;
  std::vector<Coefficients> custom;
  Normalize normalize = Normalize::kPrescaled;
  double normalize_eps = 1e-7;
  RowScaling row_scaling = RowScaling::kNone;
  bool renormalize = false;
  /// Restarts of the Gram form; if absent, muonrt searches for them.
  std::optional<std::vector<int>> gram_restarts;
  std::optional<DType> iteration_dtype;  // for both forms; default: the optimizer's
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

/// The rows and columns that are orthogonalized as a separate matrix, in each matrix of the
/// parameter.
struct PartSettings {
  std::string name;
  Runs rows, cols;
  double scale_factor = 1.0;
  double lr_factor = 1.0;
  NormuonAxis normuon_axis = NormuonAxis::kOff;
};

/// The settings of QK-clip for a parameter. Sizes have the same meaning as in QkClip.
struct QkClipSettings {
  QkKind kind = QkKind::kNone;
  int32_t layer = 0, heads = 0, kv_heads = 0, head_dim = 0, nope = 0, rope = 0, v_dim = 0;
  bool selects = false;    // if true, only the heads in `select` are clipped
  bool from_name = false;  // true if the layer was read from the parameter's name
  std::vector<int32_t> select;
  double threshold = 100.0, exponent = 0.5;
};

/// One parameter on this rank. Its buffers belong to the caller.
struct ParamSettings {
  std::string name;
  int32_t group = 0;
  DType dtype = DType::kF32, grad_dtype = DType::kF32;
  Layout layout;                      // includes the global shape
  std::optional<Layout> grad_layout;  // layout of the gradient, if its shards differ from `layout`
  std::vector<int64_t> local_shape;   // given by the caller; checked if local_shape_given is true
  bool local_shape_given = false;
  void* data = nullptr;
  const void* grad = nullptr;
  MasterKind master_kind = MasterKind::kAuto;
  float* master = nullptr;
  int owner = -1;
  /// The owner of each matrix of a stack, instead of `owner`; may be empty.
  std::vector<int32_t> owners;
  int32_t priority = 0;     // parameters with lower numbers are exchanged first
  View view = View::kNone;  // already applied: `layout` is 2-D, or 3-D for kStack
  bool transposed = false;  // true if the matrix is stored as inputs x outputs
  std::vector<PartSettings> parts;
  double lr_factor = 1.0;
  NormuonAxis normuon_axis = NormuonAxis::kOff;
  QkClipSettings qk_clip;
};

/// Chooses the owners of a Muon parameter. Called once for each parameter, in order, when an
/// optimizer is created.
/// @param holders  Ranks that hold elements of the parameter, in ascending order.
/// @param owner    One entry for each matrix, initially -1. If the function sets only the first
///     entry, that owner gets all matrices.
/// @return  0, or an error code; creation then fails with this code.
using AssignOwner = std::function<int(int64_t param, const ParamSettings& info,
                                      const std::vector<int32_t>& holders, int32_t* owner)>;

struct OptimizerSettings {
  /// Returns the defaults for a kind of device.
  static OptimizerSettings defaults(DeviceKind kind);

  DeviceKind device = DeviceKind::kHost;
  int device_index = 0;
  int threads = 0;  // if 0, threads_of() chooses it at creation
  DType transport_dtype = DType::kBF16;
  DType iteration_dtype = DType::kF32;
  std::optional<DType> gram_iteration_dtype;  // default: iteration_dtype
  CommitMode commit = CommitMode::kAtomic;
  int window = 3;
  ReplicaMode replica_mode = ReplicaMode::kOnce;
  int max_peers = 0;    // see PlanOptions
  std::string machine;  // name or JSON text of a profile; if empty, the device's default
  int64_t chunk_bytes = 64 << 20;
  int64_t timeout_ms = 600000;
  bool trace = false;
  bool portable_gemm = false;
  // The next two options apply only to CUDA; see CudaSettings.
  SymmetricProvider symmetric = SymmetricProvider::kDefault;
  bool graphs = false;
  // If true, the ranks compare before each step which parameters are inactive, and then leave these
  // out of the exchanges. Applies to all devices.
  bool omit_inactive = false;
  int reserved_sms = 0;                  // set by Optimizer::create() from the communicator
  Allocator allocator = {};              // if it has no functions, the device's allocator is used
  AssignOwner assign_owner;              // if empty, the plan chooses owners
  ExchangeCallbacks exchange_callbacks;  // if empty, the built-in exchanges are used
  /// For debugging: runs one parameter and one stage at a time, with bitwise identical results.
  bool serial = false;
  bool poison = false;       // for debugging: fills messages and scratch with NaN before every step
  int64_t seed = 0;          // seed of stochastic rounding
  double clip_norm = 0.0;    // maximum global norm of the gradients; 0 means no clipping
  int64_t health_every = 0;  // every n-th step collects statistics; 0 means that no step does
  ReplicaCheck replica_check = ReplicaCheck::kFirst;
  std::vector<GroupSettings> groups;
  std::vector<ParamSettings> params;
};

/// The arguments of one step.
struct StepArgs {
  double lr = 0.0;
  std::vector<double> group_lrs;  // one for each group; if empty, `lr` applies to all groups
  double grad_scale_inv = 1.0;
  std::vector<int64_t> inactive_params;
  // Pointers to values in memory that the device can read. A pointer is null if its value is not
  // given.
  const float* device_grad_scale_inv = nullptr;
  const float* grad_multiplier = nullptr;
  const float* found_inf = nullptr;
  const float* qk_logits = nullptr;  // largest logit of each query head, layer by layer
  int64_t n_qk_logits = 0;
  /// The caller's stream that writes the gradients; see Device::wait_caller_stream().
  void* stream = nullptr;

  /// Copies the values to which the pointers refer, so the caller may free them. The values must be
  /// in host memory.
  void copy_host_values() {
    copies.reserve(3 + static_cast<size_t>(qk_logits ? n_qk_logits : 0));
    const auto copy = [&](const float*& from, int64_t count) {
      if (!from) return;
      copies.insert(copies.end(), from, from + count);
      from = copies.data() + copies.size() - count;
    };
    for (const float** from : {&device_grad_scale_inv, &grad_multiplier, &found_inf})
      copy(*from, 1);
    copy(qk_logits, n_qk_logits);
  }
  std::vector<float> copies;

  double lr_of(int64_t group) const {
    return group_lrs.empty() ? lr : group_lrs[static_cast<size_t>(group)];
  }
};

/// Returns the number of matrices of a Muon parameter, not counting parts. This is 1, or the size
/// of the stack.
inline int64_t stack_size(const ParamSettings& p) {
  return p.view == View::kStack ? p.layout.shape()[0] : 1;
}

/// Returns, for each matrix, the ranks that hold elements of it, in ascending order.
std::vector<std::vector<int32_t>> holders_of_matrices(const ParamSettings& p, int world);

/// If `assign_owner` is set, uses it to set the owner of every Muon parameter.
/// Errors: CALLBACK if the function returns an error; INVALID_ARGUMENT if it sets an owner that is
/// not a rank, or if the parameter already has an owner.
void assign_owners(OptimizerSettings& settings, int world);

/// Returns the machine profile that the settings select. The default is "host" or "h100".
/// Errors: INVALID_ARGUMENT if the profile is unknown or invalid, or is of a different device kind.
MachineProfile machine_of(const OptimizerSettings& settings);

/// Checks everything that a rank can check without the other ranks.
/// Errors: INVALID_ARGUMENT or NOT_SUPPORTED, with the parameter or group, the field and the
/// values.
void validate(const OptimizerSettings& settings, int rank, int world);
void validate(const GroupSettings& group, const std::string& who);

/// Copies, from `given` to `current`, the settings that may change between steps.
/// Errors: INVALID_ARGUMENT if a fixed setting differs; `current` then does not change.
void change(GroupSettings& current, const GroupSettings& given, const std::string& who);

/// Checks that the parameter exists. Errors: INVALID_ARGUMENT, with `where` before the message.
void require_param(const OptimizerSettings& settings, int64_t param, const char* where = "");

inline const GroupSettings& group_of(const OptimizerSettings& settings, int64_t param) {
  return settings.groups[static_cast<size_t>(settings.params[static_cast<size_t>(param)].group)];
}

/// Returns the number of outputs and the number of inputs of a Muon parameter's matrices. In parts
/// and in all settings, outputs are rows and inputs are columns, even if the matrices are stored
/// transposed.
inline std::pair<int64_t, int64_t> outputs_and_inputs(const ParamSettings& p) {
  const auto& shape = p.layout.shape();
  const int64_t rows = shape[shape.size() - 2], cols = shape.back();
  return p.transposed ? std::pair(cols, rows) : std::pair(rows, cols);
}

/// Returns the layout of the gradient.
inline const Layout& grad_layout(const ParamSettings& p) {
  return p.grad_layout ? *p.grad_layout : p.layout;
}

/// Sets the layout of the gradient. If it differs from `p.layout` only in its partial dimensions,
/// these become partial dimensions of `p.layout`. Otherwise `layout` becomes `p.grad_layout`.
/// Errors: INVALID_ARGUMENT if `p.layout` already has partial dimensions.
void take_grad_layout(ParamSettings& p, Layout layout);

/// Returns true if muonrt stores f32 master weights for `param`.
bool owns_master(const ParamSettings& param);

/// Returns the factor for the group's weight decay in a parameter whose learning rate is multiplied
/// by `lr_factor`.
double decay_scale(WeightDecayKind kind, double lr_factor);

const char* name_of(MasterKind kind);

}  // namespace muonrt
