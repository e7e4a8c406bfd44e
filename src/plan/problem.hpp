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
/// Where replicas hold a matrix: orthogonalized once for all of them, by each for itself, or
/// whichever the cost model calls cheaper. The bits are the same.
enum class ReplicaMode : int32_t { kOnce = 0, kEach = 1, kAuto = 2 };
enum class CommitMode : int32_t { kAtomic = 0, kEager = 1 };

/// A block of rows and columns of each of a parameter's matrices that is orthogonalized by itself:
/// the query rows of a fused QKV, a head, one half of gate_up.
struct MatrixPart {
  std::string name;
  Runs rows, cols;  // of the matrix; the part is their product
  double update_scale = 1.0;
  double decay_scale = 1.0;
};

/// What the planner has to know of one parameter. Equal on every rank.
struct ParamSpec {
  std::string name;
  Role role = Role::kMuon;
  Layout layout;                      // of the parameter; addends of the gradient included
  std::optional<Layout> grad_layout;  // of the gradient, where it is cut in another way
  DType dtype = DType::kF32;
  DType grad_dtype = DType::kF32;
  int32_t group = 0;
  bool stack = false;       // 3-D (E, rows, cols): E matrices
  bool transposed = false;  // rows are inputs: the rules of scales and of parts were told so
  FormChoice form = FormChoice::kAuto;
  int newton_schulz_steps = 5;
  std::vector<int> gram_restarts = {2};
  double update_scale = 1.0;      // the scale rule for this shape times the factors on the rate
  double decay_scale = 1.0;       // multiplies the group's decay
  std::vector<MatrixPart> parts;  // tiling each matrix; empty: the matrix is one part
  int owner = -1;                 // the caller's owner, or -1
  bool by_callback = false;       // by the caller's functions, to `owner`, which may be any rank
  bool master = false;            // weights have an f32 value beside or within the parameter
  int32_t priority = 0;           // parameters of lower numbers go first
  int64_t owner_bytes = 0;        // state on every rank that owns any of its matrices (NorMuon's)
  int64_t momentum_bytes = 4;     // of an element's momentum, wherever that lies
  int64_t weight_bytes = 0;       // kept beside each local element: an owned master, a remainder
};

/// Where the gradient lies.
inline const Layout& grad_layout(const ParamSpec& spec) {
  return spec.grad_layout ? *spec.grad_layout : spec.layout;
}

/// Whether ranks hold addends of the gradient, or other elements of it than of the parameter: it is
/// put together (and summed) where the matrix (AdamW: the slice) is owned, and the state lives
/// there.
inline bool owner_assembles_gradient(const ParamSpec& spec) {
  return spec.grad_layout || !spec.layout.partial_dims().empty();
}

/// Matrices of a Muon parameter are numbered expert by expert, part by part.
inline int64_t parts_of(const ParamSpec& spec) {
  return spec.parts.empty() ? 1 : static_cast<int64_t>(spec.parts.size());
}

/// What the model of Replicas::kAuto knows of a machine; it decides nothing else.
struct MachineRates {
  double flops = 5e10;             // of a rank, in products, per second
  double bytes = 5e9;              // that a rank sends or receives, per second
  double message_seconds = 20e-6;  // of a message, beyond its bytes
};

/// A GPU with its share of a node's links, where nobody says better.
constexpr MachineRates kGpuRates = {3e14, 5e10, 15e-6};

/// Past so many peers of a return it takes two levels, unless the caller says otherwise: queue
/// pairs, channels and launches grow with peers, and a transport that likes 8 or 72 ranks does not
/// like 1,024.
constexpr int kMaxPeers = 64;

struct PlanOptions {
  int world = 1;
  DType transport_dtype = DType::kBF16;
  int64_t chunk_bytes = 64 << 20;  // of whole matrices in the transport dtype, at one owner
  int window = 3;                  // chunks in flight, >= 1
  CommitMode commit = CommitMode::kAtomic;
  ReplicaMode replica_mode = ReplicaMode::kOnce;
  MachineRates rates;
  int max_peers = 0;  // that a rank sends to in one exchange of a return; 0: kMaxPeers
};

/// The bound on the peers of a return.
inline int max_peers(const PlanOptions& options) {
  return options.max_peers > 0 ? options.max_peers : kMaxPeers;
}

struct Problem {
  PlanOptions options;
  std::vector<ParamSpec> params;
};

}  // namespace muonrt
