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

/// Selects the number by which the input is divided. The values are part of the C ABI. Sources:
/// KellerJordan/Muon adds eps; torch.optim.Muon uses eps as a minimum.
enum class Normalize : int32_t {
  kPrescaled = 0,  // safety x norm
  kAddEps = 1,     // safety x norm + eps
  kMaxEps = 2,     // max(safety x norm, eps)
};

/// Selects how rows are scaled before the iteration. The values are part of the C ABI.
/// * AOL divides row i by the root of sum_j |(X X^T)_ij|, so the largest singular value is at most
///   1. Source: Turbo-Muon, arXiv 2512.04632.
/// * Equilibration scales all output rows to the same norm. Source: MuonEq, arXiv 2603.28254.
enum class RowScaling : int32_t { kNone = 0, kAol = 1, kEquilibrate = 2 };

/// Describes how the matrices of a group are orthogonalized. Fixed when an optimizer is created.
struct NewtonSchulz {
  CoefficientList list;                // coefficients of the standard form
  CoefficientList gram_list;           // coefficients of the Gram form; same number of steps
  std::vector<int> gram_restarts;      // Method::restarts for the Gram form
  DType iteration = DType::kF32;       // dtype of the stored iterates; products accumulate in f32
  DType gram_iteration = DType::kF32;  // dtype of the iterates in the Gram form
  Normalize normalize = Normalize::kPrescaled;
  double normalize_eps = 0;
  RowScaling row_scaling = RowScaling::kNone;
  /// If true, results are scaled to the Frobenius norm sqrt(m). Source: Muon+, arXiv 2602.21545.
  bool renormalize = false;

  bool scales_neurons() const { return renormalize || row_scaling == RowScaling::kEquilibrate; }
  const CoefficientList& list_of(Form form) const { return form == Form::kGram ? gram_list : list; }
  DType iteration_of(Form form) const { return form == Form::kGram ? gram_iteration : iteration; }
};

/// Optional settings of a group.
struct NewtonSchulzOptions {
  std::optional<DType> gram_iteration;  // default: the dtype of the standard form
  Normalize normalize = Normalize::kPrescaled;
  double normalize_eps = 0;
  RowScaling row_scaling = RowScaling::kNone;
  bool renormalize = false;
  /// Whether the caller chose the safety factor, and whether the caller chose the mode. A chosen
  /// value is used in every dtype.
  bool safety_chosen = false, mode_chosen = false;
  /// Restarts of the Gram form; if absent, muonrt searches for them.
  std::optional<std::vector<int>> restarts;
};

/// The safety factor for the finished list of a generated family if the Gram form runs in f16.
constexpr double kHalfGramSafety = 1.05;

/// Creates the coefficient lists and the restarts of a group.
/// * In f32 and bf16, the Gram form uses the same list as the standard form.
/// * In f16, the Gram form uses the list of a generated family without inner safety. Every
///   polynomial is divided by kHalfGramSafety, as in Gram Newton-Schulz (Dao-AILab).
/// * In half precision, the standard form of CANS has inner safety.
///
/// A safety factor or mode that the caller chose is not changed. If the caller chose only the mode,
/// the safety factor is the default of the list.
/// Errors: any error of make_coefficients(); NOT_SUPPORTED if Q is unbounded with the caller's
/// restarts.
NewtonSchulz make_newton_schulz(CoefficientFamily family, const CoefficientSettings& settings,
                                DType iteration, const NewtonSchulzOptions& options = {});

/// Returns the forms from which the planner may choose. kAuto becomes kStandard in three cases: the
/// Gram form restarts before every step, its list has no headroom in its dtype, or it uses f32
/// while the standard form uses bf16.
/// Errors: INVALID_ARGUMENT if the list of a permitted form has no headroom in the dtype of that
/// form's iterates.
FormChoice permitted_form(const NewtonSchulz& settings, FormChoice wish);

/// Returns the size in bytes of the workspace for `count` matrices of size m x n with m <= n. The
/// buffers in the workspace, and the matrices in the buffers, are aligned to 256 bytes.
int64_t newton_schulz_workspace(const MatrixRules& rules, const NewtonSchulz& settings,
                                const Method& method, int64_t m, int64_t n, int64_t count);

/// Arguments for a batch of matrices of equal shape and method.
struct OrthogonalizeArgs {
  const NewtonSchulz* settings = nullptr;
  const Method* method = nullptr;
  MatrixBatch raw;            // m x n with m <= n, in the transport dtype; only read
  void* workspace = nullptr;  // newton_schulz_workspace() bytes, aligned to 256 bytes; overwritten
  Tally* q = nullptr;  // null, or one tally per matrix, to which every Q of the Gram form is added
  /// Empty if settings->scales_neurons() is false; otherwise an array with 2 entries for each
  /// matrix. The array must remain valid until the work has run. In the first `count` entries, the
  /// caller sets stored_rows to true if the outputs of the matrix are its rows. Orthogonalization
  /// sets all other fields.
  std::span<NormuonState> lines = {};
};

/// Approximates the polar factors of the matrices `raw` of multiple batches in lockstep
/// (algo/lockstep.hpp). Each batch needs its own workspace. Bit for bit, the result for a matrix
/// does not depend on its batch, on its index in the batch, or on other batches. Only the
/// constructor allocates memory. The object must remain alive until the work that it enqueued has
/// run.
class Orthogonalization {
 public:
  Orthogonalization(Ops& ops, Stream& stream, std::span<const OrthogonalizeArgs> batches,
                    Findings* findings);
  /// Enqueues the work and does not block. May be called repeatedly.
  void enqueue() const;
  /// Returns the results, which are stored in the workspaces. Their dtype is
  /// settings.iteration_of(form).
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
  std::vector<ProductSequence> sequences_;
  std::vector<MatrixBatch> results_;
};

/// Reserves memory for every product that an Orthogonalization computes for this shape.
void reserve(Ops& ops, const NewtonSchulz& settings, const Method& method, int64_t m, int64_t n);

}  // namespace muonrt
