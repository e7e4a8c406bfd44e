/**
 * @file muonrt/distributed.h
 * Caller-supplied functions that choose the owner of each Muon matrix, which is the rank that
 * orthogonalizes it, and that exchange the data between the ranks.
 */
#ifndef MUONRT_DISTRIBUTED_H
#define MUONRT_DISTRIBUTED_H

#include "muonrt/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The description of a parameter that `assign` receives. It is valid only during the call. */
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
   * The ranks that hold a part of each matrix: those of matrix 0, then those of matrix 1, and so
   * on. The ranks of a matrix are in ascending order.
   */
  const int32_t* matrix_holders;

  /**
   * `n_matrices` + 1 indices: the ranks of matrix i are `matrix_holders[begin]` to
   * `matrix_holders[end - 1]` with `begin = matrix_begins[i]` and `end = matrix_begins[i + 1]`.
   */
  const int64_t* matrix_begins;
} muonrt_assign_info_t;

/**
 * Caller-supplied functions that replace built-in parts of a step for the Muon parameters, and
 * settings that control how these parts overlap.
 *
 * Call muonrt_distributed_config_init() first. Set `distributed` of muonrt_tuning_options_t to the
 * address of the struct. muonrt_optimizer_create() copies the struct. Three combinations of
 * functions are possible. muonrt_optimizer_create() returns MUONRT_ERROR_INVALID_ARGUMENT for all
 * others:
 *   - No function: only `async_parallelism` and `prefetch_count` have an effect.
 *   - Only `assign`: it selects the owners, and muonrt exchanges the data.
 *   - `assign`, `gather` and `redistribute`: the functions also exchange the data.
 *
 * If `gather` and `redistribute` are combined with one of the following, muonrt_optimizer_create()
 * returns MUONRT_ERROR_NOT_SUPPORTED:
 *   - MUONRT_COMMIT_EAGER, because muonrt would write the first parameters before it calls the
 *     functions for the last ones. If one of the later calls failed, the step could not be undone.
 *   - A Muon parameter whose gradient is partial or has its own layout, because `gather` fills only
 *     one tensor. To add partial gradients in a fixed order, which makes the results bitwise
 *     reproducible, muonrt would need each of them in a separate tensor.
 *
 * @par Calls to gather and redistribute
 * In every step, muonrt calls `gather` and `redistribute` for each Muon parameter and each of its
 * owners. It makes these calls on every rank of the communicator, in the same order on all ranks,
 * and one at a time on each rank. With `async_parallelism` the calls are grouped into rounds, so
 * that all owners can work at the same time. Round 0 contains the first parameter of every owner,
 * round 1 the second parameter of every owner, and so on. In each round, muonrt first calls
 * `gather` for all parameters of the round, in their order. Then it calls `redistribute` for them.
 * Parameters with a lower `priority` are in earlier rounds. Without `async_parallelism` a round
 * contains one parameter.
 *   - `local` contains the elements of this rank's shard, row-major and contiguous, in the
 *     transport dtype (`transport_dtype` of muonrt_tuning_options_t). It is NULL if the shard is
 *     empty.
 *   - On the owner, `full` is the whole tensor, row-major and in the transport dtype. On the other
 *     ranks it is NULL. If the matrices of a stack have different owners, `full` contains only the
 *     matrices of `owner`, in the order of the stack, without gaps. The functions then copy only
 *     the elements of these matrices between `local` and `full`. All calls for the same parameter
 *     receive the same `local`.
 *   - On the host, `stream` is NULL, and the function returns when its work is complete. It runs on
 *     a muonrt thread. However, if the communicator needs the caller's thread (MPI without
 *     MPI_THREAD_MULTIPLE), the function runs on the thread that is inside muonrt_optimizer_step()
 *     or _wait().
 *   - On CUDA, the function enqueues its work on `stream`, a cudaStream_t, and returns.
 *
 * @par Errors
 * A function returns 0 if it is successful, and any other value to report an error. After an error,
 * muonrt_optimizer_create() or muonrt_optimizer_step() returns MUONRT_ERROR_CALLBACK on every rank,
 * and parameters and state have not changed. A function must complete its communication even if it
 * returns an error, because its peers would otherwise wait for it. The functions must not throw and
 * must not call the optimizer.
 */
typedef struct muonrt_distributed_config {
  /** Size of the struct in bytes; set by muonrt_distributed_config_init(). */
  uint32_t struct_size;

  /**
   * 1: different owners work at the same time, and exchanges overlap with computations. 0 is for
   * debugging: a step processes one parameter and one stage at a time. Also set `prefetch_count` to
   * 0, because gathers otherwise still run ahead. Both values give bitwise identical results.
   * Default: 1.
   */
  int32_t async_parallelism;

  /**
   * Number of chunks (groups of matrices), 0 to 63, that gathers may run ahead of the computation.
   * If `gather` is set, the field is a number of parameters per owner instead. The field has an
   * effect with both values of `async_parallelism`, and replaces `window` of
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
   * to -1: set only the first element to choose an owner for the whole stack, or set all elements.
   * Without `gather`, the owner of a matrix must hold a part of it. muonrt_optimizer_create() calls
   * the function once for each Muon parameter, in the order of the parameters. The field `owner` of
   * muonrt_param_t must be -1 for these parameters. Default: NULL, which lets muonrt assign the
   * owners.
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
   * including all replicas. Set it if and only if you set `gather`. Default: NULL.
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
