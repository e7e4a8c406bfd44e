#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "layout/layout.hpp"
#include "layout/runs.hpp"
#include "plan/machine/profile.hpp"
#include "plan/method.hpp"

namespace muonrt {

enum class Role : int32_t { kMuon = 1, kAdamW = 2 };
/// Selects which ranks orthogonalize a matrix: one rank for all replicas (kOnce), one rank in each
/// replica (kEach), or every rank that holds the matrix, for itself (kEveryRank). kAuto selects
/// kOnce or kEach, whichever is cheaper by the cost model. The results are bitwise identical.
enum class ReplicaMode : int32_t { kOnce = 0, kEach = 1, kAuto = 2, kEveryRank = 3 };
enum class CommitMode : int32_t { kAtomic = 0, kEager = 1 };

/// A part of each matrix of a parameter. Each part is orthogonalized as a separate matrix. Examples
/// are the query rows of a fused QKV, one head, and one half of gate_up.
struct MatrixPart {
  std::string name;
  Runs rows, cols;  // rows and columns of the matrix that form the part
  double update_scale = 1.0;
  double decay_scale = 1.0;
};

/// A parameter in the form that the planner needs. It is equal on every rank.
struct ParamSpec {
  std::string name;
  Role role = Role::kMuon;
  Layout layout;  // layout of the parameter; its partial dims are those of the gradient
  std::optional<Layout> grad_layout;  // layout of the gradient, if it differs
  DType dtype = DType::kF32;
  DType grad_dtype = DType::kF32;
  int32_t group = 0;
  bool stack = false;       // true for a tensor (E, rows, cols) that contains E matrices
  bool transposed = false;  // true if rows are inputs; scales and parts already account for this
  FormChoice form = FormChoice::kAuto;
  int newton_schulz_steps = 5;
  DType iteration_dtype = DType::kF32;  // used by the cost model
  std::vector<int> gram_restarts = {2};
  /// The scale that the rule gives for this shape, times the learning-rate factors.
  double update_scale = 1.0;
  double decay_scale = 1.0;  // factor for the group's weight decay
  /// The parts into which each matrix is divided; empty if it is not divided.
  std::vector<MatrixPart> parts;
  int owner = -1;  // owner that the caller chose, or -1
  /// The caller's owner of each matrix of a stack, instead of `owner`; may be empty.
  std::vector<int32_t> owners;
  /// True if the caller's functions transfer the matrices. Any rank may then own them.
  bool by_callback = false;
  int update_every = 1;        // for AdamW: number of steps from one update to the next
  bool master = false;         // true if weights have master weights or remainders
  int32_t priority = 0;        // chunks with lower values come first
  int64_t owner_bytes = 0;     // bytes of NorMuon state on each rank that owns one of its matrices
  int64_t momentum_bytes = 4;  // bytes for each element
  int64_t weight_bytes = 0;    // bytes for each local element of a master weight or remainder
};

/// Returns the layout of the gradient.
inline const Layout& grad_layout(const ParamSpec& spec) {
  return spec.grad_layout ? *spec.grad_layout : spec.layout;
}

/// Returns true if ranks hold partial gradients, or if the gradient has a different layout than the
/// parameter. The owner of the matrix (for AdamW, of the slice) then assembles and sums the
/// gradient and stores the state.
inline bool owner_assembles_gradient(const ParamSpec& spec) {
  return spec.grad_layout || !spec.layout.partial_dims().empty();
}

/// Returns the number of parts of each matrix of a parameter. The matrices of a Muon parameter are
/// numbered expert by expert, and within an expert part by part.
inline int64_t parts_of(const ParamSpec& spec) {
  return spec.parts.empty() ? 1 : static_cast<int64_t>(spec.parts.size());
}

/// Returns the owner that the caller chose for matrix `index`, or -1.
inline int owner_of(const ParamSpec& spec, int64_t index) {
  return spec.owners.empty() ? spec.owner
                             : spec.owners[static_cast<size_t>(index / parts_of(spec))];
}

/// The default of PlanOptions::least_part on a GPU, in bytes.
constexpr int32_t kGpuLeastPart = 8 << 20;

/// The default of PlanOptions::max_peers. The number is limited because queue pairs, channels and
/// launches grow with it.
constexpr int kMaxPeers = 64;

struct PlanOptions {
  int world = 1;
  DType transport_dtype = DType::kBF16;
  /// Maximum bytes of the whole matrices of one owner in a chunk, in the transport dtype.
  int64_t chunk_bytes = 64 << 20;
  int window = 3;  // number of chunks in flight, >= 1
  CommitMode commit = CommitMode::kAtomic;
  ReplicaMode replica_mode = ReplicaMode::kOnce;
  int32_t least_part = 64 << 10;  // bytes of one owner that justify another chunk (chunks.hpp)
  /// Read only by the cost model of ReplicaMode::kAuto.
  MachineProfile machine = {};
  /// Maximum number of peers in one exchange that returns updates, >= 0; 0 means kMaxPeers.
  int max_peers = 0;
  bool serial = false;  // true: a chunk by callback has only one parameter
};

/// Returns the maximum number of peers in one exchange of a return. A return to more ranks has two
/// levels.
inline int max_peers(const PlanOptions& options) {
  return options.max_peers > 0 ? options.max_peers : kMaxPeers;
}

struct Problem {
  PlanOptions options;
  std::vector<ParamSpec> params;
};

}  // namespace muonrt
