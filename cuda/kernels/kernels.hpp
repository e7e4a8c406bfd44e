#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <span>

#include "backend/ops.hpp"
#include "cuda/kernels/block_items.hpp"

// The functions that launch kernels. Each function checks its arguments, enqueues its kernel and
// returns. Every pointer must be an address that the device can access.

namespace muonrt::cuda {

template <class Item>
struct Table {
  const Item* items = nullptr;
  const Job* jobs = nullptr;
  int64_t job_count = 0;
};

// pack.cu
void pack_direction(const Table<ShardBlockItem>& blocks, const StepTables& tables,
                    TypedBuffer message, Findings* findings, cudaStream_t stream);
void pack_partial_grad(const Table<ShardBlockItem>& blocks, const ParamView* params,
                       TypedBuffer message, Findings* findings, cudaStream_t stream);
/// @param blocks  number of thread blocks that share the list; does not affect the result.
void scan(const int32_t* list, int64_t count, const ParamView* params, Findings* findings,
          int blocks, cudaStream_t stream);
void check_masters(const int32_t* list, int64_t count, const ParamView* params, Findings* findings,
                   int blocks, cudaStream_t stream);

// unpack.cu
void unpack(const Table<MatrixItem>& table, ConstTypedBuffer message, cudaStream_t stream);
void pack(const Table<MatrixItem>& table, TypedBuffer message, Findings* findings,
          cudaStream_t stream);

// sum.cu
void accumulate(const Table<ShardBlockItem>& blocks, float* sums, ConstTypedBuffer message,
                bool first, cudaStream_t stream);
void pack_adamw(const Table<ShardBlockItem>& blocks, const StepTables& tables, TypedBuffer message,
                Findings* findings, cudaStream_t stream);
void commit_values(const Table<ShardBlockItem>& blocks, const ParamView* params,
                   ConstTypedBuffer message, const CommitCondition& condition, cudaStream_t stream);

// normalize.cu
/// Maximum number of matrices that one launch normalizes; larger batches need several launches.
constexpr int64_t kNormalizeBatch = 1024;
int64_t normalize_scratch_bytes();
/// @param scratch  normalize_scratch_bytes() bytes; only one call may use this memory at a time.
void normalize(const MatrixBatch& in, const MatrixBatch& out, const Normalization& how,
               Findings* findings, void* scratch, cudaStream_t stream);

// scale_rows.cu
void scale_rows(const MatrixBatch& gram, const MatrixBatch& x, const MatrixBatch& factors,
                const AolRule& rule, cudaStream_t stream);

// commit.cu
void commit_muon(const Table<ShardBlockItem>& blocks, const StepTables& tables,
                 ConstTypedBuffer message, const CommitCondition& condition, cudaStream_t stream);
void commit_update(const Table<ShardBlockItem>& blocks, const StepTables& tables,
                   ConstTypedBuffer message, const CommitCondition& condition, cudaStream_t stream);
void commit_momentum(const Table<ShardBlockItem>& blocks, const StepTables& tables,
                     const CommitCondition& condition, cudaStream_t stream);
void commit_adamw(const int32_t* list, int64_t count, const StepTables& tables,
                  const CommitCondition& condition, int blocks, cudaStream_t stream);
void commit_adamw_blocks(const Table<ShardBlockItem>& blocks, const StepTables& tables,
                         const CommitCondition& condition, cudaStream_t stream);

// normuon.cu
void normuon(const MatrixBatch& matrices, std::span<const NormuonState> states,
             const StepTables& tables, cudaStream_t stream);
void commit_normuon(std::span<const NormuonState> states, const ParamView* params,
                    const CommitCondition& condition, cudaStream_t stream);

// clipping.cu
/// @param blocks  number of thread blocks that share the list; does not affect the result.
void sum_squares(const int32_t* list, int64_t count, const ParamView* params, int64_t* sums,
                 int blocks, cudaStream_t stream);
void scale_gradients(const GradientFactors& factors, const NormClip& clip,
                     const GradientTables& tables, Findings* findings, double* norm,
                     cudaStream_t stream);
void take_logits(const float* from, float* to, int64_t count, cudaStream_t stream);
void clip_heads(const QkClip& clip, Findings* findings, cudaStream_t stream);

// tally.cu
/// Loads the kernels of tally.cu, because the warm-up does not launch them.
void load_tallies();
/// @param blocks  number of thread blocks that share a matrix, or the memory to hash; does not
///     affect the result.
void tally(const MatrixBatch& x, const uint16_t* low, Tally* tallies, int blocks,
           cudaStream_t stream);
void hash_memory(const void* memory, int64_t bytes, uint64_t* sum, int blocks, cudaStream_t stream);

// lanczos.cu
void lanczos(const MatrixBatch& x, float* workspace, Lanczos* out, cudaStream_t stream);

// vote.cu
void cast_vote(Vote* vote, const Findings* findings, int64_t fingerprint, int64_t orthogonalized,
               bool local_ok, cudaStream_t stream);

// copy.cu
/// Maximum number of bytes that fit into a kernel's arguments.
constexpr int64_t kInlineBytes = 256;
/// Copies between any two addresses that the device can access, including host memory.
void copy_by_kernel(void* to, const void* from, int64_t bytes, cudaStream_t stream);
/// Writes bytes from host memory. The function reads these bytes before it returns.
void write_inline(void* to, const void* from, int64_t bytes, cudaStream_t stream);

// clock.cu
void write_clock(int64_t* where, cudaStream_t stream);

// naive_gemm.cu
/// Computes all matrices of `product` with naive loops, for any combination of dtypes.
void naive_gemm(const Product& product, cudaStream_t stream);

// epilogue.cu
/// Computes C = beta D + gamma I.
void scale_add_identity(const Product& product, cudaStream_t stream);
/// Sets C(j, i) to C(i, j) for all i < j in each matrix.
void mirror(const MatrixBatch& c, cudaStream_t stream);
/// Adds gamma I to X.
void add_identity(const MatrixBatch& x, float gamma, cudaStream_t stream);

// guarded_copy.cu; `closed` is in host memory that the device can access
/// Loads the kernels of guarded_copy.cu, because the warm-up does not launch them.
void load_guarded_copies();
/// Copies from `from` to `to` unless *closed is set.
void copy_unless_closed(const int64_t* from, int64_t* to, int64_t n, const int32_t* closed,
                        cudaStream_t stream);
/// Sets *flag to 0 if *closed is set. `flag` is in host memory, and earlier work on the stream has
/// set *flag. If the host sets *closed and then finds that *flag is 0, all work that is enqueued
/// after this kernel finds that *closed is set.
void clear_if_closed(int64_t* flag, const int32_t* closed, cudaStream_t stream);
/// Converts values to integers that have the same order.
void order_floats(const float* from, int32_t* to, int64_t n, cudaStream_t stream);
/// Converts the integers back to values. Does nothing if *closed is set.
void copy_floats_unless_closed(const int32_t* from, float* to, int64_t n, const int32_t* closed,
                               cudaStream_t stream);

}  // namespace muonrt::cuda
