#pragma once

#include <cstdint>
#include <span>

#include "backend/clipping.hpp"
#include "backend/device.hpp"
#include "backend/health.hpp"
#include "backend/matrix_rules.hpp"
#include "backend/normuon.hpp"
#include "backend/qk_clip.hpp"
#include "backend/step.hpp"
#include "plan/rank_chunk.hpp"

namespace muonrt {

/// `count` matrices of equal shape, rows x cols, row-major; `ld` and `stride` in elements. The
/// dtype is f32 or bf16. Matrices that Newton-Schulz iterates on, or that `pack` and `unpack` copy,
/// may be f16.
struct MatrixBatch {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0, cols = 0, ld = 0, count = 0, stride = 0;
};

/// C = alpha A op(B) + beta D + gamma I, accumulated in f32, rounded once to C's dtype. If alpha is
/// 0, A and B only give the shape and are not read.
struct Product {
  MatrixBatch a, b, c;
  MatrixBatch d;  // d.data null: no D. D may be A or B; C is none of them.
  bool transpose_b = false;
  bool symmetric = false;  // the result is symmetric: upper tiles computed, mirrored bit for bit
  float alpha = 1.0f, beta = 0.0f, gamma = 0.0f;
};

/// How the input of Newton-Schulz is scaled: it is divided by max(safety x its Frobenius norm +
/// added, least). Published optimizers use either `added` or `least`.
struct Normalization {
  float safety = 1.0f;
  float added = 0.0f, least = 0.0f;
};

/// How rows are scaled by the absolute sums of their Gram matrix (AOL).
struct AolRule {
  float safety = 1.0f;
  float least = 1e-7f;  // a smaller sum counts as this: zero rows stay zero
};

/// The operations of a step on one device. Every op enqueues on `stream` and returns. Spans, tables
/// and pointers must stay valid until the work has run. Spans and arrays of MatrixBatch are in host
/// memory, all other memory must be accessible to the device. After `reserve` no op allocates
/// device memory, except for what a backend stores when it sees a list for the first time. A
/// library for products may use the heap inside its own calls.
class Ops : public MatrixRules {
 public:
  /// Allocates what products up to this size need. m, n, k as in C (m x n) = A (m x k) op(B).
  virtual void reserve(int64_t m, int64_t n, int64_t k, DType dtype) = 0;

  virtual void fill(Stream& stream, void* memory, unsigned char value, int64_t bytes) = 0;
  virtual void copy(Stream& stream, void* to, const void* from, int64_t bytes) = 0;

  /// message <- cast(direction(new momentum, gradient)) for each block of an active parameter, and
  /// zeros for an inactive one. Parameters and state are not written. Notes directions and
  /// gradients that are not finite in `findings`, and whether they are finite in f32.
  virtual void pack_direction(Stream& stream, std::span<const ShardBlock> blocks,
                              const StepTables& tables, TypedBuffer message,
                              Findings* findings) = 0;
  /// As pack_direction, but for partial gradients: message <- cast(gradient), not scaled.
  virtual void pack_partial_grad(Stream& stream, std::span<const ShardBlock> blocks,
                                 const ParamView* params, TypedBuffer message,
                                 Findings* findings) = 0;

  /// Adds the partial gradients of a message to `sums`, at the local offsets of the blocks, with
  /// one rounding in f32. If `first`, it overwrites `sums` instead. A list covers no element twice.
  virtual void accumulate(Stream& stream, std::span<const ShardBlock> blocks, float* sums,
                          ConstTypedBuffer message, bool first) = 0;

  /// message <- cast(weight after AdamW), and zeros for inactive parameters. Parameters and state
  /// are not written. Notes scaled gradients that are not finite or whose square is not finite.
  virtual void pack_adamw(Stream& stream, std::span<const ShardBlock> blocks,
                          const StepTables& tables, TypedBuffer message, Findings* findings) = 0;

  /// Checks the gradients of the listed parameters that are active or `clip_only`. Notes scaled
  /// gradients that are not finite, or for AdamW (parameters with a variance) whose square is not
  /// finite.
  virtual void scan(Stream& stream, std::span<const int32_t> list, const ParamView* params,
                    Findings* findings) = 0;

  /// Compares the weights of the listed parameters that are active and have master weights with
  /// these (`is_stale`), and notes the lowest parameter with a difference.
  virtual void check_masters(Stream& stream, std::span<const int32_t> list, const ParamView* params,
                             Findings* findings) = 0;

  /// matrices[block.matrix] <- message (same dtype). A matrix is stored with its short side as
  /// rows; see OwnedMatrix::transposed.
  virtual void unpack(Stream& stream, std::span<const MatrixBlock> blocks,
                      std::span<const OwnedMatrix> owned, const MatrixBatch* matrices,
                      ConstTypedBuffer message) = 0;

  /// message <- cast(matrices[block.matrix]), the reverse of `unpack` for the same list. Notes
  /// values that are not finite.
  virtual void pack(Stream& stream, std::span<const MatrixBlock> blocks,
                    std::span<const OwnedMatrix> owned, const MatrixBatch* matrices,
                    TypedBuffer message, Findings* findings) = 0;

  /// out <- in / (safety x Frobenius norm). The input is first scaled by a power of two, so that
  /// the norm neither overflows nor underflows. A zero matrix stays zero and is counted. The order
  /// of the sum depends only on the shape, so equal values and shapes give bitwise identical
  /// results.
  virtual void normalize(Stream& stream, const MatrixBatch& in, const MatrixBatch& out,
                         const Normalization& how, Findings* findings) = 0;

  /// AOL: computes s_i = 1 / (safety sqrt(max(sum_j |gram_ij|, least))) into `factors`, multiplies
  /// row i of x by s_i and gram_ij by s_i s_j. The sums are f32 in 32 chains (element j in chain
  /// j mod 32), which are halved until one value is left.
  /// @param gram     m x m, exactly symmetric before and after the call.
  /// @param x        m x n, the same count and dtype as `gram`.
  /// @param factors  1 x m, the same count, f32; overwritten.
  virtual void scale_rows(Stream& stream, const MatrixBatch& gram, const MatrixBatch& x,
                          const MatrixBatch& factors, const AolRule& rule) = 0;

  /// Computes the products in any order or concurrently. No product may write memory that another
  /// reads or writes. The bits of a product do not depend on the other products.
  virtual void multiply(Stream& stream, std::span<const Product> products) = 0;
  void multiply(Stream& stream, const Product& product) {
    multiply(stream, std::span<const Product>(&product, 1));
  }

  /// x <- x + gamma I with one rounding to x's dtype. Only the diagonal is read and written.
  virtual void add_identity(Stream& stream, const MatrixBatch& x, float gamma) = 0;

  /// Fills this rank's vote from its findings. If `local_ok` is set, no callback failed and no
  /// weights are stale, either `consent` or `nonfinite` is 1, depending on whether all values were
  /// finite; otherwise both are 0. The gradient factor (see Vote::set_factor) and the replica words
  /// are copied.
  virtual void cast_vote(Stream& stream, Vote* vote, const Findings* findings, int64_t fingerprint,
                         int64_t orthogonalized, bool local_ok) = 0;

  /// If the condition passes: writes the momentum and applies decay and update, for every block of
  /// an active parameter. bf16 momentum is rounded stochastically, like kStochastic weights. All
  /// commits note a weight that is not finite as stored in the condition's findings. Momentum is
  /// not checked, because it is finite if its direction is.
  virtual void commit_muon(Stream& stream, std::span<const ShardBlock> blocks,
                           const StepTables& tables, ConstTypedBuffer message,
                           const CommitCondition& condition) = 0;
  /// As commit_muon, but writes only the weights. For parameters whose owner keeps the momentum.
  virtual void commit_update(Stream& stream, std::span<const ShardBlock> blocks,
                             const StepTables& tables, ConstTypedBuffer message,
                             const CommitCondition& condition) = 0;
  /// As commit_muon, but writes only the momentum. For the owner that keeps it.
  virtual void commit_momentum(Stream& stream, std::span<const ShardBlock> blocks,
                               const StepTables& tables, const CommitCondition& condition) = 0;

  /// If the condition passes: writes the message's values as weights of active parameters, in the
  /// parameter's WeightForm. Not for kStochastic.
  virtual void commit_values(Stream& stream, std::span<const ShardBlock> blocks,
                             const ParamView* params, ConstTypedBuffer message,
                             const CommitCondition& condition) = 0;

  /// If the condition passes: AdamW for every active parameter of `list`, and for the `blocks` of
  /// parameters whose rounding needs each element's index in the whole tensor (kStochastic). The
  /// packed_offset and the scales of a block are not read.
  virtual void commit_adamw(Stream& stream, std::span<const int32_t> list,
                            std::span<const ShardBlock> blocks, const StepTables& tables,
                            const CommitCondition& condition) = 0;

  /// Scales the neurons of whole matrices by the NeuronRule of their state. kNormuon skips matrices
  /// whose parameter is inactive, and stages the new second moments; the other rules do not read
  /// `tables`.
  /// @param states  one for each matrix; a matrix whose state has 0 neurons is not changed.
  virtual void normuon(Stream& stream, const MatrixBatch& matrices,
                       std::span<const NormuonState> states, const StepTables& tables) = 0;
  /// If the condition passes and a state's parameter is active: moments <- staged.
  virtual void commit_normuon(Stream& stream, std::span<const NormuonState> states,
                              const ParamView* params, const CommitCondition& condition) = 0;

  /// sums (kNormWords) += squares of the unscaled gradients of the listed parameters that are
  /// active or `clip_only`. The sum is exact.
  virtual void sum_squares(Stream& stream, std::span<const int32_t> list, const ParamView* params,
                           int64_t* sums) = 0;
  /// Writes the factor that follows from `factors` and clipping to grad_scale of all tables, and
  /// the gradient norm to `norm` (0 without clipping). A factor that is not finite, or found_inf,
  /// is noted. findings->factor <- the bits of the factor, exclusive or those of factors.host.
  virtual void scale_gradients(Stream& stream, const GradientFactors& factors, const NormClip& clip,
                               const GradientTables& tables, Findings* findings, double* norm) = 0;

  /// to <- from, or -inf if `from` is null.
  virtual void take_logits(Stream& stream, const float* from, float* to, int64_t count) = 0;
  /// clip.factors <- the factor of each row. Notes logits that are not finite, without a parameter
  /// index.
  virtual void clip_heads(Stream& stream, const QkClip& clip, Findings* findings) = 0;

  /// tallies[k] += the elements of matrix k.
  /// @param low  null, or the lower halves of bf16 weights, stored like `x` (weight_bits.hpp).
  virtual void tally(Stream& stream, const MatrixBatch& x, const uint16_t* low, Tally* tallies) = 0;

  /// out[k] <- min(m, kLanczosSteps) steps of Lanczos's method on x x^T of matrix k, from a fixed
  /// start vector, with full reorthogonalization. It computes in f32 with the sums of scale_rows;
  /// sums over rows are formed in blocks of kLanczosRows. Source: Golub and Van Loan, Matrix
  /// Computations, section 10.1.
  /// @param x          m x n, m <= n; not changed.
  /// @param workspace  lanczos_space(m, n) for each matrix; overwritten.
  virtual void lanczos(Stream& stream, const MatrixBatch& x, float* workspace, Lanczos* out) = 0;

  /// *sum += the hash of the memory: the sum of hash_term over its 32-bit words, the last one
  /// padded with zeros. The sum wraps.
  virtual void hash_memory(Stream& stream, const void* memory, int64_t bytes, uint64_t* sum) = 0;
};

}  // namespace muonrt
