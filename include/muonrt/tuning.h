/**
 * @file muonrt/tuning.h
 * Optimizer options that few programs need: for tuning speed and memory use, and for debugging.
 *
 * muonrt_optimizer_options_t (muonrt/optimizer.h) points to the structs in this header. You may
 * free the structs after muonrt_optimizer_create() has returned.
 */
#ifndef MUONRT_TUNING_H
#define MUONRT_TUNING_H

#include "muonrt/allocator.h"
#include "muonrt/base.h"
#include "muonrt/distributed.h"

#ifdef __cplusplus
extern "C" {
#endif

/** When a step writes parameters and state. */
typedef int32_t muonrt_commit_t;
enum muonrt_commit {
  /** At the end, after all updates have been computed and all ranks have voted to commit. */
  MUONRT_COMMIT_ATOMIC = 0,

  /**
   * Chunk by chunk (a chunk is a group of matrices), as soon as the updates of a chunk have
   * arrived. The ranks vote on the gradients before the first chunk is committed. In this mode, a
   * step does not keep updates until its end, so it needs less memory. However, if an error occurs
   * after the vote, the step returns MUONRT_ERROR_TORN, and you must load a checkpoint.
   */
  MUONRT_COMMIT_EAGER = 1
};

/**
 * How many times a step orthogonalizes a matrix that has multiple replicas. Results do not depend
 * on the mode.
 */
typedef int32_t muonrt_replica_mode_t;
enum muonrt_replica_mode {
  /** Once for all replicas. The owner sends the update to each of them. */
  MUONRT_REPLICA_MODE_ONCE = 0,

  /** Once in every replica: more computation, but no messages between replicas. */
  MUONRT_REPLICA_MODE_EACH = 1,

  /**
   * The cheaper of the two modes above, according to a cost model. The printed plan compares the
   * modes.
   */
  MUONRT_REPLICA_MODE_AUTO = 2,

  /**
   * On every rank that holds elements of the matrix: each of these ranks gathers the whole matrix
   * and keeps only its own elements of the update. Use this mode to compare muonrt with optimizers
   * that gather every matrix on every rank. The field `owner` of a parameter has no effect.
   */
  MUONRT_REPLICA_MODE_EVERY_RANK = 3
};

/** The implementation of symmetric matrix products in half precision on CUDA. */
typedef int32_t muonrt_symmetric_t;
enum muonrt_symmetric {
  /**
   * MUONRT_SYMMETRIC_SM90 on compute capability 9.0, otherwise MUONRT_SYMMETRIC_VENDOR. The choice
   * may change in a later version.
   */
  MUONRT_SYMMETRIC_DEFAULT = 0,

  /**
   * cuBLASLt. It computes row panels that cover the upper triangle: 62.5% of the product for 2048
   * rows or more, 75% for 1024 to 2047 rows, and all of it for fewer rows. muonrt then copies the
   * upper triangle to the lower one.
   */
  MUONRT_SYMMETRIC_VENDOR = 1,

  /** muonrt's own kernels, which compute half of each product. They need compute capability 9.0. */
  MUONRT_SYMMETRIC_SM90 = 2
};

/**
 * In which steps the ranks check that replicas have equal gradients, weights and state.
 *
 * Each rank hashes its copies, and the vote of the step compares the hashes. If they differ, the
 * step returns MUONRT_ERROR_MISMATCH and changes nothing.
 */
typedef int32_t muonrt_replica_check_t;
enum muonrt_replica_check {
  /**
   * In every step until one is committed, and again after muonrt_optimizer_set_step(),
   * muonrt_optimizer_set_update_count() and muonrt_optimizer_load(). After
   * muonrt_optimizer_reset_masters(), the next step compares the weights and state of the listed
   * parameters. The gradient of an inactive parameter is compared in the first step in which the
   * parameter is active.
   */
  MUONRT_REPLICA_CHECK_FIRST = 0,

  /** In every step. The host then waits in each step until all replicated data is hashed. */
  MUONRT_REPLICA_CHECK_EVERY = 1,

  /** Never. */
  MUONRT_REPLICA_CHECK_OFF = 2
};

/**
 * Tuning options of muonrt_optimizer_create().
 *
 * Call muonrt_tuning_options_init() before you set fields. All fields must be equal on all ranks,
 * except `graphs`, `allocator`, and the functions and state of `distributed`. If another field
 * differs, muonrt_optimizer_create() returns MUONRT_ERROR_MISMATCH.
 */
typedef struct muonrt_tuning_options {
  /** Size of the struct in bytes; set by muonrt_tuning_options_init(). */
  uint32_t struct_size;

  /**
   * Dtype of the elements that ranks exchange: MUONRT_DTYPE_F32 or MUONRT_DTYPE_BF16. muonrt rounds
   * all elements to this dtype, including those that stay on their rank, so results do not depend
   * on the number of ranks. Default: MUONRT_DTYPE_BF16.
   */
  muonrt_dtype_t transport_dtype;

  /**
   * Dtype of the Newton-Schulz iterates: MUONRT_DTYPE_F32, _BF16 or _F16. Default: 0. On CUDA, 0
   * selects BF16 for the standard form and F16 for the Gram form. On the host, 0 selects F32 for
   * the Gram form. For the standard form on the host, 0 selects BF16 if the processor has
   * instructions for bf16 products (AVX512_BF16 or AMX) and `portable_gemm` is 0, otherwise F32;
   * muonrt_get_build_info() reports the choice.
   */
  muonrt_dtype_t iteration_dtype;

  /**
   * When a step writes parameters and state. MUONRT_COMMIT_EAGER cannot be combined with `gather`
   * and `redistribute` of `distributed`. Default: MUONRT_COMMIT_ATOMIC.
   */
  muonrt_commit_t commit;

  /**
   * How many times a step orthogonalizes a replicated matrix. Default: MUONRT_REPLICA_MODE_ONCE.
   */
  muonrt_replica_mode_t replica_mode;

  /**
   * Number of chunks (groups of matrices) that may be in flight at the same time, 1 to 64. If
   * `distributed` is set, its `prefetch_count` replaces this field. An optimizer with one rank
   * always uses 1, because it exchanges nothing. Default: 3.
   */
  int32_t window;

  /**
   * Maximum number of ranks to which the owner of a matrix sends its update directly, 0 to 2^30. If
   * more ranks need the update, and forwarding reduces the number of peers, the owner sends the
   * update to a few of these ranks, which forward it to the other replicas. Default: 0, which means
   * 64.
   */
  int32_t max_peers;

  /**
   * 1: the ranks do not exchange data of the parameters in `inactive_params`. At the start of each
   * step, the ranks compare which parameters are active, which takes one small allgather. Set this
   * option if large parameters are inactive in many steps. If a message contains active and
   * inactive parameters, everything from the first to the last active parameter is still sent.
   * Updates that ranks forward (`max_peers`) are also sent in full. Results do not change. Default:
   * 0, which exchanges zeros for inactive parameters.
   */
  int32_t omit_inactive;

  /**
   * Maximum size in bytes, 0 to 2^60, of the matrices in `transport_dtype` that one owner gathers
   * in a chunk. A single matrix may be larger. muonrt uses smaller chunks if this lets exchanges
   * overlap with matrix products; the printed plan shows the number of chunks. Default: 0, which
   * means 64 MiB on the host and 256 MiB on CUDA.
   */
  int64_t chunk_bytes;

  /**
   * Implementation of symmetric products in half precision. Must be the default on the host.
   * Default: MUONRT_SYMMETRIC_DEFAULT.
   */
  muonrt_symmetric_t symmetric;

  /**
   * 1: capture the Newton-Schulz work of each chunk as a CUDA graph and replay it in later steps;
   * results do not change. Must be 0 on the host. Default: 0.
   */
  int32_t graphs;

  /**
   * The machine for which MUONRT_REPLICA_MODE_AUTO compares the modes: a name such as "h100", or
   * the JSON text of a profile (see muonrt_plan_get_time()). The machine must have the kind of
   * device that `device` selects. Other modes ignore this field. The ranks compare the name and the
   * numbers of the profile. Default: NULL or "", which mean "host" on the host and "h100" on CUDA.
   */
  const char* machine;

  /**
   * The caller's functions that choose owners and exchange data (muonrt/distributed.h). The
   * functions and their state must remain valid until the optimizer is destroyed. Default: NULL,
   * which selects muonrt's own functions.
   */
  const muonrt_distributed_config_t* distributed;

  /**
   * The caller's allocator for device memory (muonrt/allocator.h). Its functions and state must
   * remain valid until the optimizer is destroyed. Default: NULL, which selects muonrt's own
   * allocator.
   */
  const muonrt_allocator_t* allocator;
} muonrt_tuning_options_t;

/**
 * Debugging options of muonrt_optimizer_create().
 *
 * Call muonrt_debug_options_init() before you set fields. If `portable_gemm`, `replica_check` or
 * `health_every` differs between ranks, muonrt_optimizer_create() returns MUONRT_ERROR_MISMATCH.
 */
typedef struct muonrt_debug_options {
  /** Size of the struct in bytes; set by muonrt_debug_options_init(). */
  uint32_t struct_size;

  /** 1: record the times of a step's stages for muonrt_optimizer_get_trace(). Default: 0. */
  int32_t trace;

  /** 1: fill message buffers and scratch memory with NaN before every step. Default: 0. */
  int32_t poison;

  /**
   * 1: compute matrix products with portable loops instead of the GEMM library. The loops are slow
   * and may round differently. Default: 0.
   */
  int32_t portable_gemm;

  /** When the ranks compare replicas. Default: MUONRT_REPLICA_CHECK_FIRST. */
  muonrt_replica_check_t replica_check;

  /** Reserved; 0. */
  int32_t reserved;

  /**
   * Interval between steps that collect statistics (muonrt/health.h), in committed steps, 0 to
   * 2^53. Default: 0, which means that no step collects statistics.
   */
  int64_t health_every;
} muonrt_debug_options_t;

/**
 * Sets every field of `options` to its default.
 *
 * Call it through the macro muonrt_tuning_options_init(), which passes the size.
 *
 * Threads: any.
 *
 * @param[out] options  The struct to fill; NULL is accepted.
 * @param[in]  size     Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_tuning_options_init_sized(muonrt_tuning_options_t* options, uint32_t size);
#define muonrt_tuning_options_init(options) \
  muonrt_tuning_options_init_sized((options), sizeof(muonrt_tuning_options_t))

/**
 * Sets every field of `options` to its default.
 *
 * Call it through the macro muonrt_debug_options_init(), which passes the size.
 *
 * Threads: any.
 *
 * @param[out] options  The struct to fill; NULL is accepted.
 * @param[in]  size     Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_debug_options_init_sized(muonrt_debug_options_t* options, uint32_t size);
#define muonrt_debug_options_init(options) \
  muonrt_debug_options_init_sized((options), sizeof(muonrt_debug_options_t))

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_TUNING_H */
