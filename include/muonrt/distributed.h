/**
 * @file muonrt/distributed.h
 * Functions that a program can supply to choose the owner of each Muon matrix (the rank that
 * orthogonalizes it), and to exchange the data between the ranks.
 */
#ifndef MUONRT_DISTRIBUTED_H
#define MUONRT_DISTRIBUTED_H

#include "muonrt/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Description of one parameter, which muonrt passes to `assign`; valid only during the call. */
typedef struct muonrt_assign_info {
  /** Size of the struct in bytes; set by muonrt. */
  uint32_t struct_size;

  /** Number of dimensions. */
  int32_t ndim;

  /** Name of the parameter. */
  const char* name;

  /** The global shape: the sizes of the `ndim` dimensions. */
  const int64_t* shape;

  /** The ranks that hold a part of the parameter, in ascending order. */
  const int32_t* holders;

  /** Number of ranks in `holders`. */
  int32_t n_holders;

  /** Number of ranks of the communicator. */
  int32_t world;

  /**
   * Number of matrices: more than 1 if the parameter is a stack, such as the weights of experts.
   */
  int64_t n_matrices;

  /**
   * For each matrix, the ranks that hold a part of it, in ascending order. The ranks of matrix 0
   * are followed by the ranks of matrix 1, and so on.
   */
  const int32_t* matrix_holders;

  /**
   * `n_matrices` + 1 indices. The ranks of matrix i are the elements `matrix_begins[i]` to
   * `matrix_begins[i + 1] - 1` of `matrix_holders`.
   */
  const int64_t* matrix_begins;
} muonrt_assign_info_t;

/**
 * Functions that replace parts of a step for the Muon parameters, and two fields that control how
 * exchanges overlap with computation.
 *
 * Call muonrt_distributed_config_init() first, and set `distributed` of muonrt_tuning_options_t to
 * the address of the struct. muonrt_optimizer_create() copies the struct. You can set three
 * combinations of functions; all others are rejected with MUONRT_ERROR_INVALID_ARGUMENT:
 *   - No function: only `async_parallelism` and `prefetch_count` have an effect.
 *   - Only `assign`: this function selects the owners, and muonrt exchanges the data.
 *   - `assign`, `gather` and `redistribute`: your functions select the owners and exchange the
 *     data.
 *
 * muonrt_optimizer_create() returns MUONRT_ERROR_NOT_SUPPORTED if `gather` and `redistribute` are
 * combined with one of the following:
 *   - MUONRT_COMMIT_EAGER, because muonrt would write the first parameters before calling the
 *     functions for the last ones. If one of these later calls failed, the step could not be
 *     undone.
 *   - Muon parameters whose gradient is partial or has its own layout. To obtain bitwise
 *     reproducible results, muonrt adds partial gradients in a fixed order and needs each of them
 *     in a separate tensor, but `gather` fills only one tensor.
 *
 * @par Calls to gather and redistribute
 * In every step, muonrt calls `gather` and `redistribute` for each Muon parameter and each of its
 * owners. All ranks of the communicator make these calls in the same order, and each rank makes one
 * call at a time. With `async_parallelism`, the calls are grouped into rounds, so that all owners
 * can work at the same time. Round 0 contains the first parameter of every owner, round 1 contains
 * the second parameter of every owner, and so on. Without `async_parallelism`, a round contains one
 * parameter. Parameters with a lower `priority` are in earlier rounds. In each round, muonrt first
 * calls `gather` for all parameters of the round, and then `redistribute` for all of them. The
 * arguments of the functions are as follows:
 *   - `local` contains the elements of this rank's shard, row-major and contiguous, in the
 *     transport dtype (`transport_dtype` of muonrt_tuning_options_t). It is NULL if the shard is
 *     empty.
 *   - On the owner, `full` is the whole tensor, row-major and in the transport dtype. On the other
 *     ranks, it is NULL. If the matrices of a stack have different owners, `full` contains only the
 *     matrices that the rank `owner` orthogonalizes, in the order of the stack, without gaps. The
 *     functions then copy only the elements of these matrices between `local` and `full`. All calls
 *     for the same parameter receive the same `local`.
 *   - On the host, `stream` is NULL, and the function must complete its work before it returns. The
 *     function runs on one of muonrt's threads. However, if the communicator needs the caller's
 *     thread (MPI without MPI_THREAD_MULTIPLE), the function runs on the thread that is inside
 *     muonrt_optimizer_step() or muonrt_optimizer_wait().
 *   - On CUDA, the function enqueues its work on `stream`, a cudaStream_t, and returns.
 *
 * @par Errors
 * A function returns 0 if it is successful, and any other value to report an error. After an error,
 * muonrt_optimizer_create() or muonrt_optimizer_step() returns MUONRT_ERROR_CALLBACK on every rank,
 * and parameters and state are unchanged. A function must complete its communication even if it
 * returns an error, because its peers would otherwise wait for it. The functions must not throw and
 * must not call the optimizer.
 */
typedef struct muonrt_distributed_config {
  /** Size of the struct in bytes; set by muonrt_distributed_config_init(). */
  uint32_t struct_size;

  /**
   * 1: owners work at the same time, and exchanges overlap with computation. 0, for debugging: a
   * step processes one parameter and one stage at a time. With 0, also set `prefetch_count` to 0,
   * so that gathers do not run ahead of the computation. Both values give bitwise identical
   * results. Default: 1.
   */
  int32_t async_parallelism;

  /**
   * Number of chunks (groups of matrices) that may be gathered in advance of the computation, 0 to
   * 63. If `gather` is set, it is the number of parameters that each owner may gather in advance.
   * The field has an effect with both values of `async_parallelism`, and replaces `window` of
   * muonrt_tuning_options_t. Default: 1.
   */
  int32_t prefetch_count;

  /** Reserved; 0. */
  int32_t reserved;

  /**
   * First argument of all functions; must stay valid until the optimizer is destroyed. Default:
   * NULL.
   */
  void* state;

  /**
   * Sets `*owner` to the rank that orthogonalizes parameter `param`. The function must set the same
   * owner on every rank. For a stack, `owner` has `info->n_matrices` elements, which muonrt has set
   * to -1. The function sets either only the first element, to choose one owner for the whole
   * stack, or all elements. If `gather` is NULL, the owner of a matrix must hold a shard of the
   * matrix. muonrt_optimizer_create() calls the function once for each Muon parameter, in the order
   * of the parameters. For these parameters, the field `owner` of muonrt_param_t must be -1.
   * Default: NULL, which lets muonrt choose the owners.
   */
  int (*assign)(void* state, int64_t param, const muonrt_assign_info_t* info, int32_t* owner);

  /**
   * Fills `full` on the owner from the shards of all ranks. If the parameter is replicated over a
   * mesh dimension, the function may read the shards of any replica. Default: NULL, which selects
   * the built-in exchange.
   */
  int (*gather)(void* state, int64_t param, int32_t owner, const void* local, void* full,
                void* stream);

  /**
   * Fills `local` from the owner's `full` on every rank that holds a part of the parameter,
   * including all replicas. Must be set if and only if `gather` is set. Default: NULL.
   */
  int (*redistribute)(void* state, int64_t param, int32_t owner, const void* full, void* local,
                      void* stream);
} muonrt_distributed_config_t;

/**
 * Sets every field of `config` to its default.
 *
 * Call it through the macro muonrt_distributed_config_init(), which passes the size. muonrt/base.h
 * explains how programs and libraries of different versions work together.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] config  The struct to fill; NULL is accepted.
 * @param[in]  size    Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_distributed_config_init_sized(muonrt_distributed_config_t* config,
                                                     uint32_t size);
#define muonrt_distributed_config_init(config) \
  muonrt_distributed_config_init_sized((config), sizeof(muonrt_distributed_config_t))

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_DISTRIBUTED_H */
