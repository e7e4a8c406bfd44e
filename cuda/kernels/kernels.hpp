#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "backend/ops.hpp"
#include "cuda/kernels/block_items.hpp"

// The launchers: each checks what it needs, enqueues its kernel and returns. Every pointer is to
// memory that the device reaches.

namespace muonrt::cuda {

template <class Item>
struct Table {
  const Item* items = nullptr;
  const Job* jobs = nullptr;
  int64_t job_count = 0;
};

// pack.cu
void pack_direction(const Table<ShardBlockItem>& pieces, const StepTables& tables,
                    TypedBuffer message, Findings* findings, cudaStream_t stream);
void pack_partial_grad(const Table<ShardBlockItem>& pieces, const ParamView* params,
                       TypedBuffer message, Findings* findings, cudaStream_t stream);
/// @param blocks  how many share the list; changes no result.
void scan(const int32_t* list, int64_t count, const ParamView* params, Findings* findings,
          int blocks, cudaStream_t stream);

// unpack.cu
void unpack(const Table<MatrixItem>& table, ConstTypedBuffer message, cudaStream_t stream);
void pack(const Table<MatrixItem>& table, TypedBuffer message, Findings* findings,
          cudaStream_t stream);

// sum.cu
void accumulate(const Table<ShardBlockItem>& pieces, float* sums, ConstTypedBuffer message,
                bool first, cudaStream_t stream);
void pack_adamw(const Table<ShardBlockItem>& pieces, const StepTables& tables, TypedBuffer message,
                Findings* findings, cudaStream_t stream);
void commit_values(const Table<ShardBlockItem>& pieces, const ParamView* params,
                   ConstTypedBuffer message, const CommitCondition& vote_sum, cudaStream_t stream);

// normalize.cu
/// Matrices that one launch normalizes at most; larger batches take several.
constexpr int64_t kNormalizeBatch = 1024;
int64_t normalize_scratch_bytes();
/// @param scratch  normalize_scratch_bytes, used by one call at a time.
void normalize(const MatrixBatch& in, const MatrixBatch& out, const Normalization& how,
               Findings* findings, void* scratch, cudaStream_t stream);

// scale_rows.cu
void scale_rows(const MatrixBatch& gram, const MatrixBatch& x, const MatrixBatch& factors,
                const AolRule& rule, cudaStream_t stream);

// commit.cu
void commit_muon(const Table<ShardBlockItem>& pieces, const StepTables& tables,
                 ConstTypedBuffer message, const CommitCondition& vote_sum, cudaStream_t stream);
void commit_update(const Table<ShardBlockItem>& pieces, const StepTables& tables,
                   ConstTypedBuffer message, const CommitCondition& vote_sum, cudaStream_t stream);
void commit_momentum(const Table<ShardBlockItem>& pieces, const StepTables& tables,
                     const CommitCondition& vote_sum, cudaStream_t stream);
void commit_adamw(const int32_t* list, int64_t count, const StepTables& tables,
                  const CommitCondition& vote_sum, int blocks, cudaStream_t stream);
void commit_adamw_blocks(const Table<ShardBlockItem>& pieces, const StepTables& tables,
                         const CommitCondition& vote_sum, cudaStream_t stream);

// normuon.cu
void normuon(const MatrixBatch& matrices, std::span<const NormuonState> states,
             const StepTables& tables, cudaStream_t stream);
void commit_normuon(std::span<const NormuonState> states, const ParamView* params,
                    const CommitCondition& vote_sum, cudaStream_t stream);

// clipping.cu
/// @param blocks  how many share the list; changes no result.
void sum_squares(const int32_t* list, int64_t count, const ParamView* params, int64_t* sums,
                 int blocks, cudaStream_t stream);
void scale_gradients(const GradientFactors& factors, const NormClip& clip,
                     const GradientTables& tables, Findings* findings, double* norm,
                     cudaStream_t stream);
void take_logits(const float* from, float* to, int64_t count, cudaStream_t stream);
void clip_heads(const QkClip& clip, Findings* findings, cudaStream_t stream);

// tally.cu
/// As load_guarded_copies.
void load_tallies();
/// @param blocks  how many share a matrix, or the memory; changes no result.
void tally(const MatrixBatch& x, const uint16_t* low, Tally* tallies, int blocks,
           cudaStream_t stream);
void hash_memory(const void* memory, int64_t bytes, uint64_t* sum, int blocks, cudaStream_t stream);

// lanczos.cu
void lanczos(const MatrixBatch& x, float* workspace, Lanczos* out, cudaStream_t stream);

// vote.cu
void cast_vote(Vote* vote, const Findings* findings, int64_t fingerprint, int64_t orthogonalized,
               bool local_ok, cudaStream_t stream);

// copy.cu
/// What fits into a kernel's arguments.
constexpr int64_t kInlineBytes = 256;
/// Copies between any two places the device reaches, host memory included.
void copy_by_kernel(void* to, const void* from, int64_t bytes, cudaStream_t stream);
/// Writes bytes that are read from host memory before this returns.
void write_inline(void* to, const void* from, int64_t bytes, cudaStream_t stream);

// clock.cu
void write_clock(int64_t* where, cudaStream_t stream);

// naive_gemm.cu
/// The whole of `product`, any dtypes, plain loops.
void naive_gemm(const Product& product, cudaStream_t stream);

// epilogue.cu
/// C = beta D + gamma I.
void scale_add_identity(const Product& product, cudaStream_t stream);
/// C(j, i) <- C(i, j) for all i < j, for each matrix.
void mirror(const MatrixBatch& c, cudaStream_t stream);
/// X <- X + gamma I.
void add_identity(const MatrixBatch& x, float gamma, cudaStream_t stream);

// guarded_copy.cu; `closed`: host memory that the device reaches
/// Loads the kernels of this file, none of which is reached before ranks meet.
void load_guarded_copies();
/// to <- from, unless *closed.
void copy_unless_closed(const int64_t* from, int64_t* to, int64_t n, const int32_t* closed,
                        cudaStream_t stream);
/// *flag <- 0 if *closed. A host that closes, then finds *flag 0, knows that what is enqueued
/// behind this finds *closed, too; *flag is memory of the host's that the stream itself has set
/// before.
void clear_if_closed(int64_t* flag, const int32_t* closed, cudaStream_t stream);
/// Values as integers of the same order, and back unless *closed.
void order_floats(const float* from, int32_t* to, int64_t n, cudaStream_t stream);
void copy_floats_unless_closed(const int32_t* from, float* to, int64_t n, const int32_t* closed,
                               cudaStream_t stream);

}  // namespace muonrt::cuda
