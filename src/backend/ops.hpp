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

/// `count` equal matrices, rows x cols, row-major, `ld` and `stride` in elements. dtype f32 or
/// bf16; f16 for those that Newton-Schulz iterates on: normalized, multiplied, packed.
struct MatrixBatch {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0, cols = 0, ld = 0, count = 0, stride = 0;
};

/// C = alpha A op(B) + beta D + gamma I, accumulated in f32, rounded once to C's dtype. Where alpha
/// is 0, A and B give the shape alone and are not read.
struct Product {
  MatrixBatch a, b, c;
  MatrixBatch d;  // d.data null: no D. D may be A or B; C is none of them.
  bool transpose_b = false;
  bool symmetric = false;  // the result is symmetric: upper tiles computed, mirrored bit for bit
  float alpha = 1.0f, beta = 0.0f, gamma = 0.0f;
};

/// How the input of Newton-Schulz is scaled: divided by max(safety x its Frobenius norm + added,
/// least), as the published optimizers have one or the other.
struct Normalization {
  float safety = 1.0f;
  float added = 0.0f, least = 0.0f;
};

/// How rows are scaled by the absolute sums of their Gram matrix (AOL).
struct AolRule {
  float safety = 1.0f;
  float least = 1e-7f;  // a smaller sum counts as this: zero rows stay zero
};

/// The verbs of a step. Every op enqueues on `stream` and returns; arguments that are spans, tables
/// or pointers must stay valid until the work has run. Spans and arrays of MatrixBatch lie in host
/// memory, all else where the device reaches it. No op takes device memory after `reserve`, but for
/// what a backend keeps of a list that it meets for the first time; a library for products may use
/// the heap inside its own calls.
class Ops : public MatrixRules {
 public:
  /// Takes what products up to this size need once. m, n, k as in C (m x n) = A (m x k) op(B).
  virtual void reserve(int64_t m, int64_t n, int64_t k, DType dtype) = 0;

  virtual void fill(Stream& stream, void* memory, unsigned char value, int64_t bytes) = 0;
  virtual void copy(Stream& stream, void* to, const void* from, int64_t bytes) = 0;

  /// message <- cast(direction(momentum', gradient)) for each piece of an active parameter, zeros
  /// for an inactive one; reads only. Notes non-finite directions and gradients in `findings`, and
  /// which are so only in the message's dtype.
  virtual void pack_direction(Stream& stream, std::span<const ShardBlock> blocks,
                              const StepTables& tables, TypedBuffer message,
                              Findings* findings) = 0;
  /// As pack_direction, for the addends of a sum: message <- cast(gradient), not scaled.
  virtual void pack_partial_grad(Stream& stream, std::span<const ShardBlock> blocks,
                                 const ParamView* params, TypedBuffer message,
                                 Findings* findings) = 0;

  /// Addends of gradients: sums[local place of each piece] <- the message's value (`first`), or
  /// what is there plus it, one rounding in f32. A list covers no element twice.
  virtual void accumulate(Stream& stream, std::span<const ShardBlock> blocks, float* sums,
                          ConstTypedBuffer message, bool first) = 0;

  /// message <- cast(weight that AdamW gives), zeros for inactive parameters; reads only. Notes
  /// gradients that are not finite once scaled, or whose square is not.
  virtual void pack_adamw(Stream& stream, std::span<const ShardBlock> blocks,
                          const StepTables& tables, TypedBuffer message, Findings* findings) = 0;

  /// Notes gradients of the listed active or watched parameters that are not finite once scaled, or
  /// whose square is not (AdamW parameters, which have a variance); reads only.
  virtual void scan(Stream& stream, std::span<const int32_t> list, const ParamView* params,
                    Findings* findings) = 0;

  /// matrices[p.matrix] <- message (same dtype), stored short side first (see Owned::transposed).
  virtual void unpack(Stream& stream, std::span<const MatrixBlock> blocks,
                      std::span<const OwnedMatrix> owned, const MatrixBatch* matrices,
                      ConstTypedBuffer message) = 0;

  /// message <- cast(matrices[p.matrix]), the same list read the other way; notes non-finite
  /// values.
  virtual void pack(Stream& stream, std::span<const MatrixBlock> blocks,
                    std::span<const OwnedMatrix> owned, const MatrixBatch* matrices,
                    TypedBuffer message, Findings* findings) = 0;

  /// out <- in / (safety x Frobenius norm), scaled by a power of two first so that no norm over- or
  /// underflows; a zero matrix gives zero and is counted. One fixed tree per matrix: the bits
  /// follow from the values and the shape alone.
  virtual void normalize(Stream& stream, const MatrixBatch& in, const MatrixBatch& out,
                         const Normalization& how, Findings* findings) = 0;

  /// AOL: with s_i = 1 / (safety sqrt(max(sum_j |gram_ij|, least))), row i of x times s_i, gram_ij
  /// times s_i s_j; the s_i are left in `factors`. Sums in f32, in 32 chains (element j in chain j
  /// mod 32), which are halved down to one value.
  /// @param gram     m x m, symmetric to the bit; stays so.
  /// @param x        m x n, as many as gram; same dtype.
  /// @param factors  1 x m, as many, f32; overwritten.
  virtual void scale_rows(Stream& stream, const MatrixBatch& gram, const MatrixBatch& x,
                          const MatrixBatch& factors, const AolRule& rule) = 0;

  /// Products of which none writes what another reads or writes, in any order or at once. Each has
  /// the bits that it has alone.
  virtual void multiply(Stream& stream, std::span<const Product> products) = 0;
  void multiply(Stream& stream, const Product& product) {
    multiply(stream, std::span<const Product>(&product, 1));
  }

  /// x <- x + gamma I, one rounding to x's dtype; nothing off the diagonal is read or written.
  virtual void add_identity(Stream& stream, const MatrixBatch& x, float gamma) = 0;

  /// `ballot` <- what this rank found: consent = local_ok and nothing non-finite, nonfinite =
  /// local_ok and something non-finite, the findings' factor by halves, with the square of each,
  /// and their words of replicas.
  virtual void cast_vote(Stream& stream, Vote* vote, const Findings* findings, int64_t fingerprint,
                         int64_t orthogonalized, bool local_ok) = 0;

  /// If the verdict passes: momentum, decay and update of every piece of an active parameter.
  /// bf16 momentum is rounded at random, as weights of kStochastic are. This commit and
  /// those below note in the verdict's findings a weight that is not finite once stored (momentum
  /// is finite where its direction is).
  virtual void commit_muon(Stream& stream, std::span<const ShardBlock> blocks,
                           const StepTables& tables, ConstTypedBuffer message,
                           const CommitCondition& vote_sum) = 0;
  /// The weights alone: decay and update, where an owner keeps the momentum.
  virtual void commit_update(Stream& stream, std::span<const ShardBlock> blocks,
                             const StepTables& tables, ConstTypedBuffer message,
                             const CommitCondition& vote_sum) = 0;
  /// The momentum alone, at that owner.
  virtual void commit_momentum(Stream& stream, std::span<const ShardBlock> blocks,
                               const StepTables& tables, const CommitCondition& vote_sum) = 0;

  /// Where it passes: weights of active parameters <- the message's values, in the form that the
  /// parameter keeps them in. Not for kStochastic.
  virtual void commit_values(Stream& stream, std::span<const ShardBlock> blocks,
                             const ParamView* params, ConstTypedBuffer message,
                             const CommitCondition& vote_sum) = 0;

  /// Where it passes: AdamW of every listed active parameter, and of the pieces of others: those
  /// whose rounding asks for an element's place in the whole tensor (kStochastic). packed_offset
  /// and the scales of a piece are not read.
  virtual void commit_adamw(Stream& stream, std::span<const int32_t> list,
                            std::span<const ShardBlock> blocks, const StepTables& tables,
                            const CommitCondition& vote_sum) = 0;

  /// matrix <- NorMuon(matrix) for whole matrices as they are stored, unless a matrix's parameter
  /// sits out; the new second moments are staged. Or matrix <- its lines scaled by another
  /// NeuronRule, which reads no tables.
  /// @param states  one for each matrix; with no lines: it is left alone.
  virtual void normuon(Stream& stream, const MatrixBatch& matrices,
                       std::span<const NormuonState> states, const StepTables& tables) = 0;
  /// Where the verdict passes and a state's parameter took part: moments <- staged.
  virtual void commit_normuon(Stream& stream, std::span<const NormuonState> states,
                              const ParamView* params, const CommitCondition& vote_sum) = 0;

  /// sums (kNormWords) += squares of the unscaled gradients of the listed active or watched
  /// parameters, exact.
  virtual void sum_squares(Stream& stream, std::span<const int32_t> list, const ParamView* params,
                           int64_t* sums) = 0;
  /// The tables' grad_scale <- the factor that `factors` and clipping give. A factor that is not
  /// finite, or an infinity found, is noted; findings->factor <- how it differs from factors.host.
  virtual void scale_gradients(Stream& stream, const GradientFactors& factors, const NormClip& clip,
                               const GradientTables& tables, Findings* findings, double* norm) = 0;

  /// to <- from, or -inf where `from` is null.
  virtual void take_logits(Stream& stream, const float* from, float* to, int64_t count) = 0;
  /// clip.factors <- the factor of each row; notes logits that are not finite,
  /// which are no parameter's.
  virtual void clip_heads(Stream& stream, const QkClip& clip, Findings* findings) = 0;

  /// tallies[k] += the elements of matrix k; reads only.
  /// @param low  null, or the lower halves of bf16 weights, at the same places (weight_bits.hpp).
  virtual void tally(Stream& stream, const MatrixBatch& x, const uint16_t* low, Tally* tallies) = 0;

  /// out[k] <- min(m, kLanczosSteps) steps of Lanczos's method on x x^T of matrix k, from one start
  /// vector, with all of the basis kept orthogonal; in f32, sums as in scale_rows, those over rows
  /// in blocks of kLanczosRows. Source: Golub and Van Loan, Matrix Computations, section 10.1.
  /// @param x          m x n, m <= n; reads only.
  /// @param workspace  lanczos_space(m, n) for each matrix; overwritten.
  virtual void lanczos(Stream& stream, const MatrixBatch& x, float* workspace, Lanczos* out) = 0;

  /// *sum += the hash of the memory: hash_term of each of its words of 32 bits, a last one filled
  /// up with zeros; wraps.
  virtual void hash_memory(Stream& stream, const void* memory, int64_t bytes, uint64_t* sum) = 0;
};

}  // namespace muonrt
