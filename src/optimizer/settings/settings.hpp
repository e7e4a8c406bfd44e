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
  kEmaCorrected = 2  // the buffer of kEma; directions are corrected for its start from zero
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
/// Whose second moments NorMuon keeps. Off in a parameter or part: as what holds it.
enum class NormuonAxis : int32_t { kOff = 0, kRows = 1, kColumns = 2, kLonger = 3 };
enum class AdamForm : int32_t { kTorch = 0, kFolded = 1, kNesterov = 2 };
/// When replicas are compared: in the first committed step (and the first of a resume), in every
/// one, never.
enum class ReplicaCheck : int32_t { kFirst = 0, kEvery = 1, kOff = 2 };
enum class DeviceKind : int32_t { kHost = 0, kCuda = 1 };
/// Block-periodic orthogonalization: steps 0, period, 2 period, ... take whole matrices, the others
/// the blocks of a grid over the global matrix. Source: MuonBP, arXiv 2510.16981.
struct BlockGrid {
  int period = 1;
  int rows = 1, cols = 1;  // blocks
  double lr_factor = 1.0;  // on block steps
};

enum class StateKind : int32_t {
  kMomentum = 0,
  kVariance = 1,
  kMaster = 2,
  kRemainder = 3,
  kNormuon = 4
};

/// Settings that parameters share; the C struct `muonrt_group_t` in our own types.
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
  double safety = 0;  // 0: the family's own
  SafetyMode safety_mode = SafetyMode::kAuto;
  std::vector<Coefficients> custom;
  Normalize normalize = Normalize::kPrescaled;
  double normalize_eps = 1e-7;
  RowScaling row_scaling = RowScaling::kNone;
  bool renormalize = false;
  std::optional<std::vector<int>> gram_restarts;  // of the Gram form; absent: searched
  std::optional<DType> iteration_dtype;                 // of both forms; absent: the optimizer's
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

enum class View : int32_t { kNone = 0, kStack = 1, kMatrix = 2 };

/// A block of each matrix that is orthogonalized by itself.
struct PartSettings {
  std::string name;
  Runs rows, cols;
  double scale_factor = 1.0;
  double lr_factor = 1.0;
  NormuonAxis normuon_axis = NormuonAxis::kOff;
};

/// How QK-clip acts on a parameter; sizes as in QkClip.
struct QkClipSettings {
  QkKind kind = QkKind::kNone;
  int32_t layer = 0, heads = 0, kv_heads = 0, head_dim = 0, nope = 0, rope = 0, v_dim = 0;
  bool selects = false;  // only the heads in `select`
  std::vector<int32_t> select;
  double threshold = 100.0, exponent = 0.5;
};

/// One parameter as this rank holds it; buffers are borrowed.
struct ParamSettings {
  std::string name;
  int32_t group = 0;
  DType dtype = DType::kF32, grad_dtype = DType::kF32;
  Layout layout;                      // carries the global shape
  std::optional<Layout> grad_layout;  // of the gradient, where it is cut in another way
  std::vector<int64_t> local_shape;   // what the caller says it holds; empty: not compared
  bool local_shape_given = false;
  void* data = nullptr;
  const void* grad = nullptr;
  MasterKind master_kind = MasterKind::kAuto;
  float* master = nullptr;
  int owner = -1;
  int32_t priority = 0;     // parameters of lower numbers go first
  View view = View::kNone;  // `layout` is of matrices (kStack: a 3-D stack of them) already
  bool transposed = false;  // stored inputs x outputs
  std::vector<PartSettings> parts;
  double lr_factor = 1.0;
  NormuonAxis normuon_axis = NormuonAxis::kOff;
  QkClipSettings qk_clip;
};

/// Names the rank that orthogonalizes a Muon parameter; called once for each at creation, in their
/// order. `holders` are the ranks that hold a part of it, ascending.
/// @return  0, or an error code that ends the creation.
using AssignOwner = std::function<int(int64_t param, const ParamSettings& facts,
                                      const std::vector<int32_t>& holders, int32_t* owner)>;

struct OptimizerSettings {
  /// Dtypes and sizes that fit a kind of device.
  static OptimizerSettings defaults(DeviceKind kind);

  DeviceKind device = DeviceKind::kHost;
  int device_index = 0;
  int threads = 1;
  DType transport_dtype = DType::kBF16;
  DType iteration_dtype = DType::kF32;
  std::optional<DType> gram_iteration_dtype;  // absent: as `iteration`
  CommitMode commit = CommitMode::kAtomic;
  int window = 3;
  ReplicaMode replica_mode = ReplicaMode::kOnce;
  int max_peers = 0;                                                 // as PlanOptions
  double machine_flops = 0, machine_bytes = 0, machine_message = 0;  // 0: the device's default
  int64_t chunk_bytes = 64 << 20;
  int64_t timeout_ms = 600000;
  bool trace = false;
  bool portable_gemm = false;
  // CUDA; as CudaSettings.
  SymmetricProvider symmetric = SymmetricProvider::kDefault;
  bool graphs = false;
  int reserved_sms = 0;                  // Optimizer::create asks the communicator
  Allocator allocator = {};              // no functions: the device's own
  AssignOwner assign_owner;              // empty: the plan chooses owners
  ExchangeCallbacks exchange_callbacks;  // empty: the built-in exchanges
  bool serial = false;       // one parameter and one stage at a time, for debugging; same bits
  bool poison = false;       // messages and scratch are NaN before every step
  int64_t seed = 0;          // of stochastic rounding
  double clip_norm = 0.0;    // of all gradients; 0: not clipped
  int64_t health_every = 0;  // steps that measure: every so many; 0: none
  ReplicaCheck replica_check = ReplicaCheck::kFirst;
  std::vector<GroupSettings> groups;
  std::vector<ParamSettings> params;
};

/// Arguments of one step.
struct StepArgs {
  double lr = 0.0;
  std::vector<double> group_lrs;  // by group, in place of `lr`; empty: `lr` for all
  double grad_scale_inv = 1.0;
  std::vector<int64_t> inactive_params;
  // Where the device reads them; null: absent.
  const float* device_grad_scale_inv = nullptr;
  const float* grad_multiplier = nullptr;
  const float* found_inf = nullptr;
  const float* qk_logits = nullptr;  // largest of each query head, layer by layer
  int64_t n_qk_logits = 0;
  void* stream = nullptr;  // the caller's, on which gradients are written; as Device::join

  double lr_of(int64_t group) const {
    return group_lrs.empty() ? lr : group_lrs[static_cast<size_t>(group)];
  }
};

/// Asks `assign` for every Muon parameter's owner. Errors: CALLBACK if it returns one;
/// INVALID_ARGUMENT where it names no rank, or the parameter has an owner already.
void assign_owners(OptimizerSettings& settings, int world);

/// Everything that can be checked on one rank alone.
/// Errors: INVALID_ARGUMENT or NOT_SUPPORTED, naming parameter or group, field and values.
void validate(const OptimizerSettings& settings, int rank, int world);
void validate(const GroupSettings& group, const std::string& who);

/// Takes what of a group may change between steps. Errors: INVALID_ARGUMENT where what is fixed
/// differs; nothing is taken then.
void change(GroupSettings& mine, const GroupSettings& given, const std::string& who);

/// Errors: INVALID_ARGUMENT, beginning with `where`, unless there is such a parameter.
void require_param(const OptimizerSettings& settings, int64_t param, const char* where = "");

inline const GroupSettings& group_of(const OptimizerSettings& settings, int64_t param) {
  return settings.groups[static_cast<size_t>(settings.params[static_cast<size_t>(param)].group)];
}

/// Rows and columns of a Muon parameter's matrices, outputs x inputs, however they are stored.
/// Parts and all settings count by these.
inline std::pair<int64_t, int64_t> outputs_and_inputs(const ParamSettings& p) {
  const auto& shape = p.layout.shape();
  const int64_t rows = shape[shape.size() - 2], cols = shape.back();
  return p.transposed ? std::pair(cols, rows) : std::pair(rows, cols);
}

/// Where the gradient lies.
inline const Layout& grad_layout(const ParamSettings& p) {
  return p.grad_layout ? *p.grad_layout : p.layout;
}

/// Takes `layout` as that of the gradient: where it differs by nothing but addends, `p.layout` says
/// so; where it is cut in another way, it is kept beside it.
/// Errors: INVALID_ARGUMENT where p.layout has addends, too.
void take_grad_layout(ParamSettings& p, Layout layout);

/// Whether muonrt keeps f32 master weights of its own for `param`.
bool owns_master(const ParamSettings& param);

/// What a group's decay is multiplied by where the rate is multiplied by `lr_factor`.
double decay_scale(WeightDecayKind kind, double lr_factor);

const char* name_of(MasterKind kind);

}  // namespace muonrt
