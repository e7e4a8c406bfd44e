#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "layout/layout.hpp"
#include "layout/runs.hpp"
#include "plan/method.hpp"

namespace muonrt {

enum class Role : int32_t { kMuon = 1, kAdamW = 2 };
/// How often a matrix is orthogonalized: once for all replicas, in each replica, whichever of these
/// is cheaper by the cost model, or by every rank that holds it, for itself. The results are
/// bitwise identical.
enum class ReplicaMode : int32_t { kOnce = 0, kEach = 1, kAuto = 2, kEveryRank = 3 };
enum class CommitMode : int32_t { kAtomic = 0, kEager = 1 };

/// A part of each matrix of a parameter that is orthogonalized as a separate matrix: the query rows
/// of a fused QKV, a head, one half of gate_up.
struct MatrixPart {
  std::string name;
  Runs rows, cols;  // of the matrix; the part is their product
  double update_scale = 1.0;
  double decay_scale = 1.0;
};

/// One parameter as the planner sees it. Equal on every rank.
struct ParamSpec {
  std::string name;
  Role role = Role::kMuon;
  Layout layout;                      // of the parameter; partial dims are those of the gradient
  std::optional<Layout> grad_layout;  // of the gradient, if it differs
  DType dtype = DType::kF32;
  DType grad_dtype = DType::kF32;
  int32_t group = 0;
  bool stack = false;       // 3-D (E, rows, cols): E matrices
  bool transposed = false;  // rows are inputs; scales and parts already account for it
  FormChoice form = FormChoice::kAuto;
  int newton_schulz_steps = 5;
  std::vector<int> gram_restarts = {2};
  double update_scale = 1.0;      // the scale rule for this shape times the factors on the rate
  double decay_scale = 1.0;       // multiplies the group's decay
  std::vector<MatrixPart> parts;  // tiling each matrix; empty: the matrix is one part
  int owner = -1;                 // the caller's owner, or -1
  std::vector<int32_t> owners;    // by matrix of a stack, instead of `owner`; empty: none
  bool by_callback = false;       // the caller's functions transfer it to its owners, any ranks
  int update_every = 1;           // AdamW: it rests in the other steps
  bool master = false;            // weights have an f32 value, separate or split off
  int32_t priority = 0;           // chunks of lower priority values come first
  int64_t owner_bytes = 0;        // NorMuon state on each rank that owns one of its matrices
  int64_t momentum_bytes = 4;     // per element
  int64_t weight_bytes = 0;       // per local element: an owned master, a remainder
};

/// Returns the layout of the gradient.
inline const Layout& grad_layout(const ParamSpec& spec) {
  return spec.grad_layout ? *spec.grad_layout : spec.layout;
}

/// Returns true if ranks hold partial gradients, or a gradient with another layout than the
/// parameter. Then the owner of the matrix (AdamW: of the slice) assembles and sums the gradient
/// and keeps the state.
inline bool owner_assembles_gradient(const ParamSpec& spec) {
  return spec.grad_layout || !spec.layout.partial_dims().empty();
}

/// Matrices of a Muon parameter are numbered expert by expert, part by part.
inline int64_t parts_of(const ParamSpec& spec) {
  return spec.parts.empty() ? 1 : static_cast<int64_t>(spec.parts.size());
}

/// Returns the caller's owner of matrix `index`, or -1.
inline int owner_of(const ParamSpec& spec, int64_t index) {
  return spec.owners.empty() ? spec.owner
                             : spec.owners[static_cast<size_t>(index / parts_of(spec))];
}

/// Rates of a machine for the cost model of ReplicaMode::kAuto; used for nothing else.
struct MachineRates {
  double flops = 5e10;             // FLOP per second of a rank in products
  double bytes = 5e9;              // bytes per second that a rank sends or receives
  double message_seconds = 20e-6;  // seconds per message, in addition to its bytes
};

/// Default rates for a GPU with its share of a node's links.
constexpr MachineRates kGpuRates = {3e14, 5e10, 15e-6};

/// PlanOptions::least_part of a GPU.
constexpr int32_t kGpuLeastPart = 8 << 20;

/// Default of PlanOptions::max_peers. Queue pairs, channels and launches grow with the number of
/// peers.
constexpr int kMaxPeers = 64;

struct PlanOptions {
  int world = 1;
  DType transport_dtype = DType::kBF16;
  int64_t chunk_bytes = 64 << 20;  // whole matrices in the transport dtype, per owner
  int window = 3;                  // chunks in flight, >= 1
  CommitMode commit = CommitMode::kAtomic;
  ReplicaMode replica_mode = ReplicaMode::kOnce;
  int32_t least_part = 64 << 10;  // bytes of an owner that are worth a chunk (chunks.hpp)
  MachineRates rates;
  int max_peers = 0;    // peers of a rank in one exchange of a return, >= 0; 0: kMaxPeers
  bool serial = false;  // one parameter by callback in each chunk, instead of one of each owner
};

/// Returns the limit of peers; a return to more takes two levels.
inline int max_peers(const PlanOptions& options) {
  return options.max_peers > 0 ? options.max_peers : kMaxPeers;
}

struct Problem {
  PlanOptions options;
  std::vector<ParamSpec> params;
};

}  // namespace muonrt
