/**
 * @file muonrt/plan.h
 * Plans the steps of an optimizer in one process, for all ranks. Planning needs no other ranks, no
 * GPU and no memory for the parameters.
 *
 * Describe the options, groups and parameters as for muonrt_optimizer_create(), but without
 * buffers. The result is the same as the plan of an optimizer with these options, groups and
 * parameters.
 *
 * @code
 * muonrt_plan_t* plan = NULL;
 * muonrt_plan_rank_t rank;
 * muonrt_plan_create(&plan, 512, NULL, groups, n_groups, params, n_params);
 * muonrt_plan_rank_init(&rank);
 * muonrt_plan_get_rank(&rank, plan, 0);
 * printf("%lld bytes\n", (long long)rank.total_bytes);
 * muonrt_plan_destroy(plan);
 * @endcode
 */
#ifndef MUONRT_PLAN_H
#define MUONRT_PLAN_H

#include "muonrt/inspect.h"
#include "muonrt/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A plan without an optimizer. It holds no device memory. */
typedef struct muonrt_plan muonrt_plan_t;

/**
 * Summary of a plan. If `block_period` is set, the numbers describe a full step, in which whole
 * matrices are orthogonalized.
 */
typedef struct muonrt_plan_summary {
  /** Size of the struct in bytes; set by muonrt_plan_summary_init(). */
  uint32_t struct_size;

  /** Number of ranks. */
  int32_t world;

  /** Number of all parameters, and of Muon parameters only. */
  int64_t params, muon_params;

  /** Number of elements of all parameters, and of Muon parameters only. */
  int64_t elements, muon_elements;

  /**
   * Number of matrices that are orthogonalized in a step. Each expert and each part counts as a
   * matrix. With MUONRT_REPLICA_MODE_EACH, a matrix counts once per replica; with
   * MUONRT_REPLICA_MODE_EVERY_RANK, it counts once per rank that holds elements of it.
   */
  int64_t matrices;

  /** Number of chunks. */
  int64_t chunks;

  /** FLOP of a step's matrix products on all ranks. Symmetric products count half. */
  double flops;

  /**
   * Cost of the busiest rank's matrix products, and a lower bound on this cost for any choice of
   * owners. The cost of a product is 2^20 for its launch, plus the larger of two numbers: its FLOP
   * count, and 256 times the number of elements that it reads or writes.
   */
  double makespan, lower_bound;

  /** Bytes that are sent between ranks in a step. */
  int64_t moved_bytes;

  /** The part of `moved_bytes` that can be exchanged while matrices are being orthogonalized. */
  int64_t hidden_bytes;

  /**
   * Largest number of ranks to which one rank sends messages in an exchange that returns updates.
   */
  int64_t peers;

  /**
   * The rank that needs the most memory; if there are several, the lowest of them. See
   * muonrt_plan_get_rank().
   */
  int32_t largest_rank;

  /** Reserved; 0. */
  int32_t reserved;
} muonrt_plan_summary_t;

/**
 * Sets every field of `summary` to its default.
 *
 * Call it through the macro muonrt_plan_summary_init(), which passes the size.
 *
 * Threads: any.
 *
 * @param[out] summary  The struct to fill; NULL is accepted.
 * @param[in]  size     Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_plan_summary_init_sized(muonrt_plan_summary_t* summary, uint32_t size);
#define muonrt_plan_summary_init(summary) \
  muonrt_plan_summary_init_sized((summary), sizeof(muonrt_plan_summary_t))

/**
 * The work and the memory of one rank. Sizes are in bytes, and no memory is counted twice.
 *
 * If `block_period` is set, an optimizer allocates memory for full steps and for block steps.
 * `message_bytes`, `staged_bytes` and `scratch_bytes` are then the sums over both kinds of step,
 * and the other fields describe full steps.
 */
typedef struct muonrt_plan_rank {
  /** Size of the struct in bytes; set by muonrt_plan_rank_init(). */
  uint32_t struct_size;

  /** The rank. */
  int32_t rank;

  /** Number of matrices that the rank orthogonalizes. */
  int64_t matrices;

  /** Number of chunks in which the rank takes part. */
  int64_t chunks;

  /** Cost of the rank's matrix products, in the unit of `makespan`. */
  double cost;

  /** Number of messages to other ranks in a step. */
  int64_t messages;

  /** Bytes sent to and received from other ranks in a step. */
  int64_t sent_bytes, received_bytes;

  /** The parameters, and the gradients in the layout and dtype in which a step reads them. */
  int64_t param_bytes, grad_bytes;

  /** Master weights and remainders, including master weights that belong to the caller. */
  int64_t master_bytes;

  /** Momentum and second moments. */
  int64_t moment_bytes;

  /** Buffers of the messages that are sent and received in a step. */
  int64_t message_bytes;

  /** Returned updates and summed gradients, which a step keeps until its vote. */
  int64_t staged_bytes;

  /** Gathered matrices and iterates of Newton-Schulz. */
  int64_t scratch_bytes;

  /** Results of the checks that values are finite and that replicas are equal. */
  int64_t check_bytes;

  /** The sum of all sizes from `param_bytes` to `check_bytes`. */
  int64_t total_bytes;
} muonrt_plan_rank_t;

/**
 * Sets every field of `rank` to its default.
 *
 * Call it through the macro muonrt_plan_rank_init(), which passes the size.
 *
 * Threads: any.
 *
 * @param[out] rank  The struct to fill; NULL is accepted.
 * @param[in]  size  Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_plan_rank_init_sized(muonrt_plan_rank_t* rank, uint32_t size);
#define muonrt_plan_rank_init(rank) muonrt_plan_rank_init_sized((rank), sizeof(muonrt_plan_rank_t))

/**
 * The time of a full step on a machine, predicted by a model of the device and the network.
 *
 * All fields from `products_seconds` to `messages` describe the rank `rank`. The sum of
 * `products_seconds`, `local_seconds`, `exposed_seconds` and `launch_seconds` is the time at which
 * this rank finishes.
 */
typedef struct muonrt_plan_time {
  /** Size of the struct in bytes; set by muonrt_plan_time_init(). */
  uint32_t struct_size;

  /** The simulated rank with the longest total time of matrix products and local work. */
  int32_t rank;

  /** Time in seconds until the last rank has finished. */
  double step_seconds;

  /** Time in seconds that this rank spends on matrix products. */
  double products_seconds;

  /** Time in seconds of memory-bound work: packing, unpacking, normalizing and committing. */
  double local_seconds;

  /**
   * Time in seconds of the exchanges and the vote, including the wait for other ranks. Exchanges
   * may overlap with other work.
   */
  double exchange_seconds;

  /** The part of `exchange_seconds` that does not overlap with other work. */
  double exposed_seconds;

  /** Time in seconds that the device waits for the host to enqueue work. */
  double launch_seconds;

  /** Bytes that this rank sends to other ranks. */
  int64_t sent_bytes;

  /** Bytes that this rank receives from other ranks. */
  int64_t received_bytes;

  /** Number of messages that this rank sends to other ranks. */
  int64_t messages;

  /** Memory of one device of the machine; compare it with `total_bytes` of `largest_rank`. */
  int64_t device_bytes;

  /** Number of simulated ranks: all ranks, or only the busiest ones if there are more than 64. */
  int32_t simulated_ranks;

  /** 1 if `device_bytes` suffices for the rank that needs the most memory, otherwise 0. */
  int32_t fits;
} muonrt_plan_time_t;

/**
 * Sets every field of `time` to its default.
 *
 * Call it through the macro muonrt_plan_time_init(), which passes the size.
 *
 * Threads: any.
 *
 * @param[out] time  The struct to fill; NULL is accepted.
 * @param[in]  size  Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_plan_time_init_sized(muonrt_plan_time_t* time, uint32_t size);
#define muonrt_plan_time_init(time) muonrt_plan_time_init_sized((time), sizeof(muonrt_plan_time_t))

/**
 * Plans an optimizer.
 *
 * The arguments after `world` have the same meaning as in muonrt_optimizer_create(). The call does
 * not use `data`, `grad`, `master`, `local_shape`, `strides` and `grad_strides` of the parameters,
 * and does not call the functions of `allocator`. With MUONRT_DEVICE_CUDA, the plan uses the
 * defaults for CUDA and describes GPU memory, but no GPU is needed. If `assign` of `distributed` is
 * set, this function calls it.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] plan      The new plan; NULL on error. Destroy it with muonrt_plan_destroy().
 * @param[in]  world     Number of ranks, 1 to 2^24.
 * @param[in]  options   The options; NULL for the defaults.
 * @param[in]  groups    `n_groups` groups. The struct_size of the first element is the stride of
 *                       the array.
 * @param[in]  n_groups  Number of groups, >= 1.
 * @param[in]  params    `n_params` parameters. The struct_size of the first element is the stride
 *                       of the array.
 * @param[in]  n_params  Number of parameters, 1 to 2^31 - 2.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: an argument or field is out of range; the message names it;
 *   - MUONRT_ERROR_NOT_SUPPORTED: settings cannot be combined;
 *   - MUONRT_ERROR_CALLBACK: `assign` of muonrt_distributed_config_t has returned an error;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_plan_create(muonrt_plan_t** plan, int32_t world,
                                              const muonrt_optimizer_options_t* options,
                                              const muonrt_group_t* groups, int32_t n_groups,
                                              const muonrt_param_t* params, int64_t n_params);

/**
 * Creates a plan from an existing optimizer, which may be destroyed afterwards.
 *
 * Threads: one at a time per optimizer. Collective: no.
 *
 * @param[out] plan       The new plan; NULL on error. Destroy it with muonrt_plan_destroy().
 * @param[in]  optimizer  The optimizer.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: a pointer is NULL;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_plan_create_from_optimizer(muonrt_plan_t** plan,
                                                             const muonrt_optimizer_t* optimizer);

/**
 * Destroys a plan.
 *
 * Threads: one at a time per plan. Collective: no.
 *
 * @param[in] plan  The plan; NULL is accepted.
 */
MUONRT_API void muonrt_plan_destroy(muonrt_plan_t* plan);

/**
 * Gets the summary of a plan.
 *
 * Threads: one at a time per plan. Collective: no.
 *
 * @param[out] summary  The summary. Call muonrt_plan_summary_init() on it first.
 * @param[in]  plan     The plan.
 *
 * @return MUONRT_OK, or MUONRT_ERROR_INVALID_ARGUMENT if a pointer is NULL or `summary` is not
 * initialized.
 */
MUONRT_API muonrt_status_t muonrt_plan_get_summary(muonrt_plan_summary_t* summary,
                                                   const muonrt_plan_t* plan);

/**
 * Gets the memory and the work of one rank.
 *
 * Threads: one at a time per plan. Collective: no.
 *
 * @param[out] info  The memory and the work. Call muonrt_plan_rank_init() on it first.
 * @param[in]  plan  The plan.
 * @param[in]  rank  The rank, 0 to `world` - 1.
 *
 * @return MUONRT_OK, or MUONRT_ERROR_INVALID_ARGUMENT if a pointer is NULL, `info` is not
 * initialized, or `rank` is out of range.
 */
MUONRT_API muonrt_status_t muonrt_plan_get_rank(muonrt_plan_rank_t* info, const muonrt_plan_t* plan,
                                                int32_t rank);

/**
 * Predicts the time of a full step on a machine.
 *
 * The call simulates a step: it enqueues the operations of the step on a model of the machine, and
 * the model computes when each operation is complete. `muonrt plan --machine` prints the same
 * times. Other work, such as the collectives of the trainer, is not included.
 *
 * @code
 * muonrt_plan_time_t time;
 * muonrt_plan_time_init(&time);
 * muonrt_plan_get_time(&time, plan, "h100");
 * printf("%.1f ms\n", 1e3 * time.step_seconds);
 * @endcode
 *
 * Threads: one at a time per plan. Collective: no.
 *
 * @param[out] time     The times. Call muonrt_plan_time_init() on it first.
 * @param[in]  plan     The plan. Its options must select the kind of device that the machine has.
 * @param[in]  machine  The name of a machine, such as "h100", or the JSON text of a profile, for
 *                      example from `muonrt bench calibrate`.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: a pointer is NULL, `time` is not initialized, the name is
 *     unknown, a field of the profile is missing or out of range, or the plan is for a different
 *     kind of device; the message names the problem;
 *   - MUONRT_ERROR_CORRUPT: the JSON text is invalid;
 *   - MUONRT_ERROR_NOT_SUPPORTED: the caller's functions exchange the data (`gather`,
 *     `redistribute`), and the time that they take is unknown;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_plan_get_time(muonrt_plan_time_t* time, const muonrt_plan_t* plan,
                                                const char* machine);

/**
 * Prints a plan: owners, chunks, bytes, memory and balance.
 *
 * Threads: one at a time per plan. Collective: no.
 *
 * @param[out] buffer    Receives at most `capacity` bytes, including a terminating zero; NULL if
 *                       `capacity` is 0.
 * @param[in]  capacity  Size of `buffer` in bytes, >= 0.
 * @param[out] needed    Length of the whole text without the terminating zero; may be NULL.
 * @param[in]  plan      The plan.
 * @param[in]  format    The format of the text.
 * @param[in]  max_rows  Maximum number of rows of each table in MUONRT_FORMAT_TEXT, >= 0; 0 means
 *                       no limit. MUONRT_FORMAT_JSON always contains all rows.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `format` is unknown, `capacity` or `max_rows` is below 0, or
 *     `buffer` is NULL and `capacity` is not 0;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_plan_describe(char* buffer, int64_t capacity, int64_t* needed,
                                                const muonrt_plan_t* plan,
                                                enum muonrt_format format, int64_t max_rows);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_PLAN_H */
