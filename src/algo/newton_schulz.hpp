#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "algo/coefficients.hpp"
#include "algo/lockstep.hpp"
#include "backend/ops.hpp"
#include "plan/method.hpp"

namespace muonrt {

/// The divisor of the input. Values are public. Sources: KellerJordan/Muon adds eps,
/// torch.optim.Muon uses it as a minimum.
enum class Normalize : int32_t {
  kPrescaled = 0,  // safety x norm
  kAddEps = 1,     // safety x norm + eps
  kMaxEps = 2,     // max(safety x norm, eps)
};

/// The scaling of rows before the iteration. Values are public. AOL divides row i by the root of
/// sum_j |(X X^T)_ij|, which bounds the largest singular value by 1. Source: Turbo-Muon, arXiv
/// 2512.04632. Equilibrate scales all output rows to one norm. Source: MuonEq, arXiv 2603.28254.
enum class RowScaling : int32_t { kNone = 0, kAol = 1, kEquilibrate = 2 };

/// How a group's matrices are orthogonalized; fixed at creation.
struct NewtonSchulz {
  CoefficientList list;                // standard form
  CoefficientList gram_list;           // Gram form; as many steps
  std::vector<int> gram_restarts;      // Method::restarts of the Gram form
  DType iteration = DType::kF32;       // storage of the iterates; products accumulate in f32
  DType gram_iteration = DType::kF32;  // the same in the Gram form
  Normalize normalize = Normalize::kPrescaled;
  double normalize_eps = 0;
  RowScaling row_scaling = RowScaling::kNone;
  /// Results are scaled to the Frobenius norm sqrt(m). Source: Muon+, arXiv 2602.21545.
  bool renormalize = false;

  bool scales_neurons() const { return renormalize || row_scaling == RowScaling::kEquilibrate; }
  const CoefficientList& list_of(Form form) const { return form == Form::kGram ? gram_list : list; }
  DType iteration_of(Form form) const { return form == Form::kGram ? gram_iteration : iteration; }
};

/// Further options of a group.
struct NewtonSchulzOptions {
  std::optional<DType> gram_iteration;  // absent: dtype of the standard form
  Normalize normalize = Normalize::kPrescaled;
  double normalize_eps = 0;
  RowScaling row_scaling = RowScaling::kNone;
  bool renormalize = false;
  bool safety_chosen = false, mode_chosen = false;  // true: set by the caller, kept in any dtype
  std::optional<std::vector<int>> restarts;         // of the Gram form; absent: searched
};

/// Safety of the finished list of a generated family in the Gram form in f16.
constexpr double kHalfGramSafety = 1.05;

/// Makes the lists of a group and its restarts. In f32 and bf16 the Gram form runs the standard
/// list. In f16 generated families run their list without inner safety, divided by kHalfGramSafety,
/// as in Gram Newton-Schulz (Dao-AILab). In half precision the standard form of CANS has inner
/// safety. A safety or a mode that the caller chose is kept; a chosen mode without a chosen safety
/// has the default safety of the list.
/// Errors: as make_coefficients; NOT_SUPPORTED if the caller's restarts leave Q unbounded.
NewtonSchulz make_newton_schulz(CoefficientFamily family, const CoefficientSettings& settings,
                                DType iteration, const NewtonSchulzOptions& options = {});

/// Returns what the planner may choose from. kAuto becomes kStandard if the Gram form restarts
/// before every step, or if its list has no headroom in its dtype.
/// Errors: INVALID_ARGUMENT if the list has no headroom between its steps in the dtype that a
/// permitted form iterates in.
FormChoice permitted_form(const NewtonSchulz& settings, FormChoice wish);

/// Returns the bytes of workspace for `count` matrices m x n (m <= n). Its buffers and matrices are
/// 256-byte aligned.
int64_t newton_schulz_workspace(const MatrixRules& rules, const NewtonSchulz& settings,
                                const Method& method, int64_t m, int64_t n, int64_t count);

/// A batch of matrices of equal shape and method.
struct OrthogonalizeArgs {
  const NewtonSchulz* settings = nullptr;
  const Method* method = nullptr;
  MatrixBatch raw;            // m x n with m <= n, transport dtype; read only
  void* workspace = nullptr;  // newton_schulz_workspace bytes, 256-byte aligned; overwritten
  Tally* q = nullptr;         // null, or one per matrix, to which every Q of the Gram form is added
  /// If settings->scales_neurons(): two for each matrix, valid until the work has run. The caller
  /// sets stored_rows of the first `count`: true if the outputs of the matrix are its rows.
  /// Orthogonalization sets the other fields.
  std::span<NormuonState> lines = {};
};

/// Approximates the polar factors of the matrices `raw` of all batches in lockstep
/// (algo/lockstep.hpp). Each batch needs a separate workspace. The result of a matrix is bitwise
/// independent of its batch, its index there, and the other batches. Only the constructor
/// allocates.
class Orthogonalization {
 public:
  Orthogonalization(Ops& ops, Stream& stream, std::span<const OrthogonalizeArgs> batches,
                    Findings* findings);
  /// Enqueues the work; may be called repeatedly. Does not block.
  void enqueue() const;
  /// The results, inside the workspaces; their dtype is settings.iteration_of(form).
  const std::vector<MatrixBatch>& results() const { return results_; }

 private:
  struct Normalized {
    MatrixBatch raw, x;
    Normalization how;
  };
  struct ScaledLines {
    MatrixBatch x;
    std::span<const NormuonState> lines;
  };
  Ops* ops_;
  Stream* stream_;
  Findings* findings_;
  std::vector<Normalized> normalized_;
  std::vector<ScaledLines> equilibrated_, renormalized_;
  std::vector<GroupedProducts> grouped_products_;
  std::vector<MatrixBatch> results_;
};

/// Constructs an Orthogonalization and enqueues it once. @return  its results.
std::vector<MatrixBatch> orthogonalize(Ops& ops, Stream& stream,
                                       std::span<const OrthogonalizeArgs> batches,
                                       Findings* findings);
/// The same for one batch.
MatrixBatch orthogonalize(Ops& ops, Stream& stream, const NewtonSchulz& settings,
                          const Method& method, const MatrixBatch& raw, void* workspace,
                          Findings* findings, Tally* q = nullptr);

/// Reserves every product that orthogonalize uses for this shape.
void reserve(Ops& ops, const NewtonSchulz& settings, const Method& method, int64_t m, int64_t n);

}  // namespace muonrt
