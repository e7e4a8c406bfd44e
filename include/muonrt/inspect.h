/**
 * @file muonrt/inspect.h
 * Functions that report what an optimizer plans and what it has done: the plan, memory use, the
 * trace of a step, counters, and the attention heads that QK-clip has clipped.
 */
#ifndef MUONRT_INSPECT_H
#define MUONRT_INSPECT_H

#include "muonrt/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Format of a printed plan or trace. */
typedef int32_t muonrt_format_t;
enum muonrt_format { MUONRT_FORMAT_TEXT = 0, MUONRT_FORMAT_JSON = 1 };

/** Counters of this rank. Counting starts when the optimizer is created. */
typedef struct muonrt_counters {
  /** Size of the struct in bytes; set by muonrt_counters_init(). */
  uint32_t struct_size;

  /** Maximum number of chunks (groups of matrices) that were in flight at the same time. */
  int32_t chunks_resident_peak;

  /** Number of allocations of device memory, including memory that host and device share. */
  int64_t allocations;

  /** Total size in bytes of the allocations that `allocations` counts. */
  int64_t allocated_bytes;

  /**
   * Number of streams and events that were created, plus the number of times that a work queue has
   * grown.
   */
  int64_t objects;

  /** Number of exchanges between ranks. */
  int64_t exchanges;

  /** Number of bytes sent to other ranks. */
  int64_t bytes_sent;

  /** Number of matrices that this rank has orthogonalized. */
  int64_t orthogonalized;

  /** Number of bytes of state and parameters that this rank wrote to the last checkpoint. */
  int64_t saved_bytes;

  /**
   * The part of `saved_bytes` that belongs to parameters. A parameter adds nothing if only its
   * master weights are saved.
   */
  int64_t saved_param_bytes;

  /** Number of compute threads of this rank; 0 on CUDA. */
  int64_t threads;
} muonrt_counters_t;

/**
 * Sets every field of `counters` to its default.
 *
 * Call it through the macro muonrt_counters_init(), which passes the size.
 *
 * Threads: any.
 *
 * @param[out] counters  The struct to fill; NULL is accepted.
 * @param[in]  size      Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_counters_init_sized(muonrt_counters_t* counters, uint32_t size);
#define muonrt_counters_init(counters) \
  muonrt_counters_init_sized((counters), sizeof(muonrt_counters_t))

/** Memory of one rank, in bytes. */
typedef struct muonrt_memory {
  /** Size of the struct in bytes; set by muonrt_memory_init(). */
  uint32_t struct_size;

  /** Reserved; 0. */
  int32_t reserved;

  /** Planned size of the buffers for messages that a step sends and receives. */
  int64_t message_bytes;

  /**
   * Planned size of the updates that owners have returned, and of sums of partial gradients. A step
   * keeps both until its vote.
   */
  int64_t staged_bytes;

  /** Planned size of gathered matrices and of Newton-Schulz iterates. */
  int64_t scratch_bytes;

  /**
   * Like `message_bytes`, but for block steps (see `block_period` of muonrt_group_t). It is 0 if no
   * group has block steps.
   */
  int64_t block_message_bytes;

  /** Like `staged_bytes`, but for block steps. */
  int64_t block_staged_bytes;

  /** Like `scratch_bytes`, but for block steps. */
  int64_t block_scratch_bytes;

  /**
   * Planned size of the buffers for the results of two checks: whether values are finite, and
   * whether replicas are equal. On CUDA, a part of this memory is pinned host memory.
   */
  int64_t check_bytes;

  /** Planned size of the momentum, the moments, and the master weights that muonrt allocates. */
  int64_t state_bytes;

  /**
   * Memory that is allocated now, equal to `allocated_bytes` of muonrt_counters_t. It includes the
   * planned memory, tables, padding, and the workspace of the device's GEMM library.
   */
  int64_t allocated_bytes;

  /** Host memory that muonrt_optimizer_save_reserve() has allocated; not in `allocated_bytes`. */
  int64_t save_bytes;
} muonrt_memory_t;

/**
 * Sets every field of `memory` to its default.
 *
 * Call it through the macro muonrt_memory_init(), which passes the size.
 *
 * Threads: any.
 *
 * @param[out] memory  The struct to fill; NULL is accepted.
 * @param[in]  size    Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_memory_init_sized(muonrt_memory_t* memory, uint32_t size);
#define muonrt_memory_init(memory) muonrt_memory_init_sized((memory), sizeof(muonrt_memory_t))

/**
 * Gets the planned and the allocated memory of this rank. muonrt_optimizer_describe_plan() prints
 * the same planned memory in the row of this rank.
 *
 * Do not call this function in every step, because it computes the messages of all ranks, which
 * takes time.
 *
 * Threads: one at a time per optimizer. Collective: no.
 *
 * @param[out] memory     The memory. Call muonrt_memory_init() before you pass it.
 * @param[in]  optimizer  The optimizer.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: a pointer is NULL, or `memory` is not initialized;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_get_memory(muonrt_memory_t* memory,
                                                       const muonrt_optimizer_t* optimizer);

/**
 * Prints the plan: owners, chunks, bytes, memory and balance.
 *
 * Threads: one at a time per optimizer. Collective: no.
 *
 * @param[out] buffer     Receives at most `capacity` bytes, including a terminating zero; NULL if
 *                        `capacity` is 0.
 * @param[in]  capacity   Size of `buffer` in bytes, >= 0.
 * @param[out] needed     Length of the whole text without the terminating zero; may be NULL.
 * @param[in]  optimizer  The optimizer.
 * @param[in]  format     The format of the text.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `format` is unknown, `capacity` is below 0, or `buffer` is
 *     NULL and `capacity` is not 0;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_describe_plan(char* buffer, int64_t capacity,
                                                          int64_t* needed,
                                                          const muonrt_optimizer_t* optimizer,
                                                          enum muonrt_format format);

/**
 * Prints the stages of the last step.
 *
 * With MUONRT_FORMAT_TEXT, the text lists the stages in order. With MUONRT_FORMAT_JSON, the text is
 * a Chrome trace with the times of the stages. You can open it in Perfetto. muonrt records times
 * only if `trace` of muonrt_debug_options_t is set.
 *
 * In the trace, `pid` is the rank, thread 0 is the compute stream, and thread 1 is the exchange
 * stream. `ts` is the time of the host's monotonic clock (std::chrono::steady_clock,
 * CLOCK_MONOTONIC) in microseconds, so you can merge the events of multiple steps, and of all ranks
 * on one host, into one list. `args` contains the number of committed steps (`step`) and the index
 * of the chunk (`chunk`). For an exchange, it also contains `bytes_sent` and `bytes_received`,
 * which exclude the messages of a rank to itself. For a matrix product, it also contains the names
 * of the matrices (`matrices`). On CUDA, the call waits until the optimizer's work is complete,
 * because it compares the clocks of the GPU and the host.
 *
 * Threads: one at a time per optimizer. Collective: no.
 *
 * @param[out] buffer     Receives at most `capacity` bytes, including a terminating zero; NULL if
 *                        `capacity` is 0.
 * @param[in]  capacity   Size of `buffer` in bytes, >= 0.
 * @param[out] needed     Length of the whole text without the terminating zero; may be NULL.
 * @param[in]  optimizer  The optimizer.
 * @param[in]  format     The format of the text.
 *
 * @return The statuses of muonrt_optimizer_describe_plan(), or
 *   - MUONRT_ERROR_INVALID_STATE: `format` is MUONRT_FORMAT_JSON, but no times were recorded
 *     because `trace` is 0;
 *   - MUONRT_ERROR_DEVICE: the GPU reported an error.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_get_trace(char* buffer, int64_t capacity,
                                                      int64_t* needed,
                                                      const muonrt_optimizer_t* optimizer,
                                                      enum muonrt_format format);

/**
 * Reads the counters of this rank.
 *
 * Threads: one at a time per optimizer. Collective: no.
 *
 * @param[out] counters   The counters. Call muonrt_counters_init() before you pass the struct.
 * @param[in]  optimizer  The optimizer.
 *
 * @return MUONRT_OK, or MUONRT_ERROR_INVALID_ARGUMENT if a pointer is NULL or `counters` is not
 * initialized.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_get_counters(muonrt_counters_t* counters,
                                                         const muonrt_optimizer_t* optimizer);

/**
 * Gets the attention layers whose logits a step reads, and the number of heads of each layer. The
 * layers and their heads determine the order and the size of `qk_logits` in muonrt_step_args_t.
 *
 * Threads: one at a time per optimizer. Collective: no.
 *
 * @param[out] layers     `capacity` elements; receives the layers from the `qk_clip` of the
 *                        parameters, in ascending order. May be NULL if `capacity` is 0.
 * @param[out] heads      `capacity` elements; receives the number of query heads of each layer. May
 *                        be NULL if `capacity` is 0.
 * @param[in]  capacity   Number of elements in `layers` and `heads`, >= 0.
 * @param[out] n_layers   Number of layers; may be larger than `capacity`.
 * @param[in]  optimizer  The optimizer.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: a required pointer is NULL, or `capacity` is out of range;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_get_qk_layers(int32_t* layers, int32_t* heads,
                                                          int64_t capacity, int64_t* n_layers,
                                                          const muonrt_optimizer_t* optimizer);

/**
 * Gets the attention heads that QK-clip clipped in the last committed step.
 *
 * Threads: one at a time per optimizer. Collective: no.
 *
 * @param[out] layers     `capacity` elements; receives the layer of each clipped head, in ascending
 *                        order. May be NULL if `capacity` is 0.
 * @param[out] heads      `capacity` elements; receives the index of each clipped query head, in
 *                        ascending order within a layer. May be NULL if `capacity` is 0.
 * @param[in]  capacity   Number of elements in `layers` and `heads`, >= 0.
 * @param[out] n_heads    Number of clipped heads; may be larger than `capacity`.
 * @param[in]  optimizer  The optimizer.
 *
 * @return MUONRT_OK, or MUONRT_ERROR_INVALID_ARGUMENT if a required pointer is NULL or `capacity`
 * is out of range.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_get_clipped_heads(int32_t* layers, int32_t* heads,
                                                              int64_t capacity, int64_t* n_heads,
                                                              const muonrt_optimizer_t* optimizer);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_INSPECT_H */
