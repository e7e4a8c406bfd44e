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

/// `count` matrices of equal shape, rows x cols, row-major. `ld` and `stride` count elements. The
/// dtype is f32 or bf16. It may also be f16 for iterates of Newton-Schulz and for matrices that
/// pack() and unpack() copy.
struct MatrixBatch {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0, cols = 0, ld = 0, count = 0, stride = 0;
};

/// C = alpha A op(B) + beta D + gamma I, accumulated in f32 and rounded once to C's dtype. If alpha
/// is 0, only the shapes of A and B are used.
struct Product {
  MatrixBatch a, b, c;
  /// If d.data is null, there is no D. D may be A or B, but C must differ from A, B and D.
  MatrixBatch d;
  bool transpose_b = false;
  /// True if the result is symmetric. The backend then computes only the upper tiles and copies
  /// them bit for bit to the lower tiles.
  bool symmetric = false;
  float alpha = 1.0f, beta = 0.0f, gamma = 0.0f;
};

/// Settings for scaling the input of Newton-Schulz. The input is divided by max(safety x its
/// Frobenius norm + added, least). Published optimizers use either `added` or `least`.
struct Normalization {
  float safety = 1.0f;
  float added = 0.0f, least = 0.0f;
};

/// Settings for scaling each row by the sum of absolute values in its row of the Gram matrix (AOL).
struct AolRule {
  float safety = 1.0f;
  float least = 1e-7f;  // smaller sums are replaced with this value, so zero rows remain zero
};

/// The operations of a step on one device. Every op enqueues work on `stream` and returns. Spans,
/// tables and pointers must stay valid until the work has run. Spans and arrays of MatrixBatch are
/// in host memory; all other memory must be accessible to the device.
///
/// After reserve(), an op allocates device memory only when it receives a list for the first time,
/// for data that the backend stores about that list. A matrix-product library may also allocate
/// host memory.
class Ops : public MatrixRules {
 public:
  /// Allocates the memory that products of up to this size need: C (m x n) = A (m x k) op(B).
  virtual void reserve(int64_t m, int64_t n, int64_t k, DType dtype) = 0;

  virtual void fill(Stream& stream, void* memory, unsigned char value, int64_t bytes) = 0;
  virtual void copy(Stream& stream, void* to, const void* from, int64_t bytes) = 0;

  /// message <- cast(direction(new momentum, gradient)) for each block of an active parameter, and
  /// zeros for an inactive parameter. Does not write parameters or state. Records in `findings`
  /// whether a direction or gradient is non-finite in the dtype of the message, and whether that
  /// value was finite in f32.
  virtual void pack_direction(Stream& stream, std::span<const ShardBlock> blocks,
                              const StepTables& tables, TypedBuffer message,
                              Findings* findings) = 0;
  /// message <- cast(gradient) for partial gradients, which are not scaled. Otherwise like
  /// pack_direction().
  virtual void pack_partial_grad(Stream& stream, std::span<const ShardBlock> blocks,
                                 const ParamView* params, TypedBuffer message,
                                 Findings* findings) = 0;

  /// Adds the partial gradients of a message to `sums`, at the local offsets of the blocks, with
  /// one rounding in f32. If `first` is true, overwrites `sums` instead. The blocks must not
  /// overlap.
  virtual void accumulate(Stream& stream, std::span<const ShardBlock> blocks, float* sums,
                          ConstTypedBuffer message, bool first) = 0;

  /// message <- cast(weight after AdamW) for each block of an active parameter, and zeros for an
  /// inactive parameter. Does not write parameters or state. Records scaled gradients that are
  /// non-finite or whose square is non-finite.
  virtual void pack_adamw(Stream& stream, std::span<const ShardBlock> blocks,
                          const StepTables& tables, TypedBuffer message, Findings* findings) = 0;

  /// Checks the gradients of the listed parameters that are active or `clip_only`. Records
  /// non-finite scaled gradients. For AdamW (parameters with a variance), also records gradients
  /// whose square is non-finite.
  virtual void scan(Stream& stream, std::span<const int32_t> list, const ParamView* params,
                    Findings* findings) = 0;

  /// For the listed parameters that are active and have master weights, compares the weights with
  /// the master weights (is_stale()). Records the lowest index among the parameters whose weights
  /// differ.
  virtual void check_masters(Stream& stream, std::span<const int32_t> list, const ParamView* params,
                             Findings* findings) = 0;

  /// matrices[block.matrix] <- message, which has the same dtype. A matrix is stored so that its
  /// rows are its short side; see OwnedMatrix::transposed().
  virtual void unpack(Stream& stream, std::span<const MatrixBlock> blocks,
                      std::span<const OwnedMatrix> owned, const MatrixBatch* matrices,
                      ConstTypedBuffer message) = 0;

  /// message <- cast(matrices[block.matrix]). This is the reverse of unpack() for the same list.
  /// Records non-finite values.
  virtual void pack(Stream& stream, std::span<const MatrixBlock> blocks,
                    std::span<const OwnedMatrix> owned, const MatrixBatch* matrices,
                    TypedBuffer message, Findings* findings) = 0;

  /// out <- in / (safety x Frobenius norm); see Normalization. The input is first scaled by a power
  /// of two, so that the norm neither overflows nor underflows. A zero matrix stays zero and is
  /// counted. The order of the sum depends only on the shape, so the same matrix always gives
  /// bitwise identical results.
  virtual void normalize(Stream& stream, const MatrixBatch& in, const MatrixBatch& out,
                         const Normalization& how, Findings* findings) = 0;

  /// AOL: computes s_i = 1 / (safety sqrt(max(sum_j |gram_ij|, least))) into `factors`, multiplies
  /// row i of x by s_i, and multiplies gram_ij by s_i s_j. Each sum is computed in f32 as 32
  /// partial sums, where element j belongs to partial sum j mod 32. Then the upper half of the
  /// partial sums is added to the lower half until one value is left.
  /// @param gram     m x m, exactly symmetric before and after the call.
  /// @param x        m x n, the same count and dtype as `gram`.
  /// @param factors  1 x m, the same count, f32; overwritten.
  virtual void scale_rows(Stream& stream, const MatrixBatch& gram, const MatrixBatch& x,
                          const MatrixBatch& factors, const AolRule& rule) = 0;

  /// Computes the products, in any order or concurrently. No product may write memory that another
  /// product reads or writes. The bits of a result do not depend on the other products.
  virtual void multiply(Stream& stream, std::span<const Product> products) = 0;
  void multiply(Stream& stream, const Product& product) {
    multiply(stream, std::span<const Product>(&product, 1));
  }
  /// Computes a sequence of products matrix by matrix: all products for one matrix of the batch,
  /// and then all for the next, so that a matrix stays in the cache. In later products, matrix i of
  /// an earlier result may be an operand of matrix i, but not of other matrices. Both products must
  /// have the same number of rows and of matrices. `products` must stay valid until the work has
  /// run.
  /// @return  False if nothing was enqueued. The caller must then call multiply() for each product.
  virtual bool multiply_by_matrix(Stream& stream, std::span<const Product> products) {
    (void)stream, (void)products;
    return false;
  }

  /// x <- x + gamma I with one rounding to x's dtype. Reads and writes only the diagonal.
  virtual void add_identity(Stream& stream, const MatrixBatch& x, float gamma) = 0;

  /// Fills this rank's vote from its findings. If `local_ok` is false, a callback failed or weights
  /// are stale, both `consent` and `nonfinite` are 0. Otherwise `consent` is 1 if all values were
  /// finite, and `nonfinite` is 1 if not. Also copies the gradient factor (see Vote::set_factor())
  /// and the terms of the replica checks to the vote.
  virtual void cast_vote(Stream& stream, Vote* vote, const Findings* findings, int64_t fingerprint,
                         int64_t orthogonalized, bool local_ok) = 0;

  /// If the condition passes, writes the momentum and applies decay and update, for every block of
  /// an active parameter. bf16 momentum is rounded stochastically, like kStochastic weights. Like
  /// all commits, records in the condition's findings whether it has written a weight that is
  /// non-finite in its stored dtype. The momentum needs no such check, because it is finite if its
  /// direction is finite.
  virtual void commit_muon(Stream& stream, std::span<const ShardBlock> blocks,
                           const StepTables& tables, ConstTypedBuffer message,
                           const CommitCondition& condition) = 0;
  /// Like commit_muon(), but writes only the weights. Used for parameters whose momentum the owner
  /// stores.
  virtual void commit_update(Stream& stream, std::span<const ShardBlock> blocks,
                             const StepTables& tables, ConstTypedBuffer message,
                             const CommitCondition& condition) = 0;
  /// Like commit_muon(), but writes only the momentum. Used by the owner that stores the momentum.
  virtual void commit_momentum(Stream& stream, std::span<const ShardBlock> blocks,
                               const StepTables& tables, const CommitCondition& condition) = 0;

  /// If the condition passes, writes the values of the message as weights of active parameters, in
  /// the parameter's WeightForm. Does not support kStochastic.
  virtual void commit_values(Stream& stream, std::span<const ShardBlock> blocks,
                             const ParamView* params, ConstTypedBuffer message,
                             const CommitCondition& condition) = 0;

  /// If the condition passes, updates every active parameter of `list` with AdamW. The `blocks`
  /// belong to parameters whose rounding needs the index of each element in the whole tensor
  /// (kStochastic); their packed_offset and scales are not read.
  virtual void commit_adamw(Stream& stream, std::span<const int32_t> list,
                            std::span<const ShardBlock> blocks, const StepTables& tables,
                            const CommitCondition& condition) = 0;

  /// Scales the neurons of whole matrices by the NeuronRule of their state. kNormuon stages the new
  /// second moments, and skips matrices whose parameter is inactive. The other rules do not read
  /// `tables`.
  /// @param states  One state for each matrix. If a state has 0 neurons, its matrix does not
  ///     change.
  virtual void normuon(Stream& stream, const MatrixBatch& matrices,
                       std::span<const NormuonState> states, const StepTables& tables) = 0;
  /// If the condition passes, copies `staged` to `moments` for each state whose parameter is
  /// active.
  virtual void commit_normuon(Stream& stream, std::span<const NormuonState> states,
                              const ParamView* params, const CommitCondition& condition) = 0;

  /// Adds squares to `sums`, which has kNormWords words: the squares of the unscaled gradients of
  /// the listed parameters that are active or `clip_only`. The sum is exact.
  virtual void sum_squares(Stream& stream, std::span<const int32_t> list, const ParamView* params,
                           int64_t* sums) = 0;
  /// Computes the gradient factor from `factors` and `clip`, and writes it to grad_scale in all
  /// tables. Writes the gradient norm to `norm` (0 without clipping). Records in `findings` whether
  /// the factor is non-finite or found_inf is set. Sets findings->factor to the bits of the factor
  /// XOR the bits of factors.host.
  virtual void scale_gradients(Stream& stream, const GradientFactors& factors, const NormClip& clip,
                               const GradientTables& tables, Findings* findings, double* norm) = 0;

  /// to <- from. If `from` is null, fills `to` with -inf.
  virtual void take_logits(Stream& stream, const float* from, float* to, int64_t count) = 0;
  /// clip.factors <- the factor of each row. If a logit is NaN or +inf, records this in `findings`,
  /// without a parameter index.
  virtual void clip_heads(Stream& stream, const QkClip& clip, Findings* findings) = 0;

  /// Adds the elements of matrix k to tallies[k].
  /// @param low  the lower halves of bf16 weights, stored like `x` (weight_bits.hpp), or null.
  virtual void tally(Stream& stream, const MatrixBatch& x, const uint16_t* low, Tally* tallies) = 0;

  /// Runs min(m, kLanczosSteps) steps of the Lanczos method on x x^T for each matrix, in f32, from
  /// a fixed start vector and with full reorthogonalization. Writes the tridiagonal matrix of
  /// matrix k to out[k]. Sums have the same order as in scale_rows(), and sums over rows are
  /// computed in blocks of kLanczosRows. Source: Golub and Van Loan, Matrix Computations, section
  /// 10.1.
  /// @param x          m x n with m <= n; not changed.
  /// @param workspace  lanczos_space(m, n) for each matrix; overwritten.
  virtual void lanczos(Stream& stream, const MatrixBatch& x, float* workspace, Lanczos* out) = 0;

  /// Adds the hash of the memory to *sum. The hash is the sum of hash_term() over the 32-bit words
  /// of the memory, and the last word is padded with zeros. Sums wrap around.
  virtual void hash_memory(Stream& stream, const void* memory, int64_t bytes, uint64_t* sum) = 0;
};

}  // namespace muonrt
