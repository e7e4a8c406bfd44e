/**
 * @file muonrt/state.h
 * The optimizer's state between steps: access to its memory, and update counts.
 *
 * Use these functions to write your own checkpoints, or to reset a part of the state. To save and
 * resume training, most programs need only muonrt/checkpoint.h.
 *
 * A parameter has some of these kinds of state (muonrt_state_kind_t in muonrt/optimizer.h):
 *   - MUONRT_STATE_MOMENTUM: the momentum of Muon, or the first moment of AdamW;
 *   - MUONRT_STATE_VARIANCE: the second moment of AdamW;
 *   - MUONRT_STATE_MASTER: f32 master weights of a bf16 parameter;
 *   - MUONRT_STATE_REMAINDER: the lower 16 bits of the f32 weights of a bf16 parameter;
 *   - MUONRT_STATE_NORMUON: the second moments of NorMuon, one per neuron. A neuron is a row or a
 *     column of a matrix, depending on the axis of NorMuon.
 *
 * Every function returns MUONRT_ERROR_INVALID_ARGUMENT if the optimizer is NULL or was destroyed,
 * and MUONRT_ERROR_INVALID_STATE in a child process that was forked after the optimizer was
 * created.
 */
#ifndef MUONRT_STATE_H
#define MUONRT_STATE_H

#include "muonrt/layout.h"
#include "muonrt/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * A block of state on this rank, with its position in the whole tensor.
 *
 * Normally, every rank holds the state of its shard of the parameter. The following state is not
 * stored with the shards:
 *   - momentum and variance of a parameter whose gradient is partial or has its own layout
 *     (`grad_layout` of muonrt_param_t);
 *   - the second moments of NorMuon.
 *
 * For Muon, the owner of a matrix or part holds its momentum and second moments in these cases. For
 * AdamW, muonrt divides the tensor into slices and assigns each slice to a rank, which holds the
 * momentum and variance of the slice.
 *
 * A state shard can therefore hold the state of a shard, a flat range, a slice, a matrix or a part
 * of a matrix. The following two rules define which elements of the tensor it holds:
 *   1. `runs` lists index ranges for each dimension of `shape`. An element of the tensor is
 *      selected if its index in each dimension is in one of the ranges of this dimension. The
 *      selected elements, in row-major order, form a sequence.
 *   2. The state shard holds the elements [begin, end) of this sequence.
 *
 * Example: the state shard for rows 2 and 3 of a 4 x 3 matrix has shape {4, 3}, n_runs {1, 1}, runs
 * {[2, 4), [0, 3)}, begin 0 and end 6.
 *
 * For MUONRT_STATE_NORMUON the tensor has one dimension, which counts the neurons of all matrices
 * of the parameter, ordered by expert and, within an expert, by part. A matrix or part with only
 * one neuron has no second moment.
 */
typedef struct muonrt_state_shard {
  /** Size of the struct in bytes; set by muonrt_state_shard_init(). */
  uint32_t struct_size;

  /** The kind of state, MUONRT_STATE_MOMENTUM to MUONRT_STATE_NORMUON. */
  muonrt_state_kind_t kind;

  /** Index of the parameter in `params` of muonrt_optimizer_create(). */
  int64_t param;

  /**
   * MUONRT_DTYPE_F32; MUONRT_DTYPE_BF16 for momentum stored as bf16 (`momentum_dtype` of
   * muonrt_group_t); 0 for MUONRT_STATE_REMAINDER, whose elements are uint16_t.
   */
  muonrt_dtype_t dtype;

  /** Number of dimensions of `shape`. */
  int32_t ndim;

  /**
   * `ndim` sizes: the global shape of the parameter, possibly with neighboring dimensions merged.
   */
  const int64_t* shape;

  /** The index ranges of all dimensions, concatenated. */
  const muonrt_run_t* runs;

  /** `ndim` numbers: for each dimension, the number of its ranges in `runs`. */
  const int64_t* n_runs;

  /** The range of elements in the sequence that `runs` defines; see above. */
  int64_t begin, end;

  /**
   * `end - begin` elements in the memory of the optimizer's device. The memory belongs to muonrt,
   * except for master weights that the caller has passed (MUONRT_MASTER_CALLER).
   */
  void* data;

  /**
   * The range of elements that this rank writes to a checkpoint, counted from `begin`. It is empty
   * if the two fields are equal. Ranks that hold the same elements write different parts of them.
   */
  int64_t write_begin, write_end;
} muonrt_state_shard_t;

/**
 * Sets every field of `shard` to its default.
 *
 * Call it through the macro muonrt_state_shard_init(), which passes the size. muonrt/base.h
 * explains how programs and libraries of different versions work together.
 *
 * Threads: any.
 *
 * @param[out] shard  The struct to fill; NULL is accepted.
 * @param[in]  size   Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_state_shard_init_sized(muonrt_state_shard_t* shard, uint32_t size);
#define muonrt_state_shard_init(shard) \
  muonrt_state_shard_init_sized((shard), sizeof(muonrt_state_shard_t))

/**
 * Lists all state of this rank, parameter by parameter.
 *
 * To find one kind of state of a parameter, compare `param` and `kind`. To learn the length of the
 * list, call the function with capacity 0 first.
 *
 * @code
 * int64_t i, n;
 * muonrt_state_shard_t* shards;
 * check(muonrt_optimizer_get_state_shards(NULL, 0, &n, optimizer));
 * shards = malloc((n + 1) * sizeof *shards);
 * muonrt_state_shard_init(&shards[0]);
 * check(muonrt_optimizer_get_state_shards(shards, n, &n, optimizer));
 * for (i = 0; i < n; ++i) {
 *   if (shards[i].param == param && shards[i].kind == MUONRT_STATE_MOMENTUM) use(&shards[i]);
 * }
 * @endcode
 *
 * Threads: one at a time per optimizer. Collective: no.
 *
 * @par Memory
 *   - Access `data` only between steps: read it to save the state, or write to it to restore the
 *     state. It stays valid until the optimizer is destroyed.
 *   - `shape`, `runs` and `n_runs` stay valid until the next successful call to this function, or
 *     until the optimizer is destroyed.
 *
 * @par Coverage
 *   - The list contains no empty state shards.
 *   - State that is not stored with the shards is listed by exactly one rank, with two exceptions.
 *     If every replica orthogonalizes its own matrices (MUONRT_REPLICA_MODE_EACH, or
 *     MUONRT_REPLICA_MODE_AUTO if it selects this mode), the state of matrices and neurons is
 *     listed once per replica. With MUONRT_REPLICA_MODE_EVERY_RANK, it is listed by every rank that
 *     holds elements of the matrix.
 *   - All other state is listed on every rank that holds a part of the parameter, including
 *     replicas.
 *   - The ranges [write_begin, write_end) of all ranks together cover each element exactly once.
 *
 * @param[out] shards     Array of `capacity` elements, filled from the start. Initialize the first
 *                        element with muonrt_state_shard_init() before the call. May be NULL if
 *                        `capacity` is 0.
 * @param[in]  capacity   Number of elements in `shards`, >= 0.
 * @param[out] n_shards   Number of state shards on this rank, even if it exceeds `capacity`.
 * @param[in]  optimizer  The optimizer, which may be unusable because of an earlier error.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `capacity` is below 0, a pointer is NULL, or the first element
 *     is not initialized;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_get_state_shards(muonrt_state_shard_t* shards,
                                                             int64_t capacity, int64_t* n_shards,
                                                             muonrt_optimizer_t* optimizer);

/**
 * Gets the update count of a parameter: the number of committed steps that have updated it.
 *
 * A step does not count if the parameter was inactive in it, or if the step did not update the
 * parameter's group because of `update_every`. AdamW uses the count for bias correction, so the
 * count is part of the state. For Muon parameters, it has no effect.
 *
 * Threads: one at a time per optimizer. Collective: no.
 *
 * @param[out] count      The update count, 0 to 2^53.
 * @param[in]  optimizer  The optimizer.
 * @param[in]  param      Index of the parameter in `params` of muonrt_optimizer_create().
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `count` is NULL or `param` is out of range.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_get_update_count(int64_t* count,
                                                             const muonrt_optimizer_t* optimizer,
                                                             int64_t param);

/**
 * Sets the update count of a parameter.
 *
 * Use it in two cases:
 *   - When you restore state yourself: first call muonrt_optimizer_set_step(), which sets every
 *     count as if no parameter had ever been inactive. Then restore the saved count of each
 *     parameter.
 *   - When you reset a parameter, such as an adapter or a new expert: set its moments to zero and
 *     its update count to 0.
 *
 * Threads: one at a time per optimizer, between steps. Collective: no, but every rank must set the
 * same count before the same step. The ranks compare the counts in the vote of the next step; if
 * they differ, the step returns MUONRT_ERROR_MISMATCH.
 *
 * @param[in] optimizer  The optimizer.
 * @param[in] param      Index of the parameter in `params` of muonrt_optimizer_create().
 * @param[in] count      The update count, 0 to 2^53.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `param` or `count` is out of range; the count is unchanged.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_set_update_count(muonrt_optimizer_t* optimizer,
                                                             int64_t param, int64_t count);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_STATE_H */
