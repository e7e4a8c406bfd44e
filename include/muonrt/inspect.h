/**
 * @file muonrt/inspect.h
 * What an optimizer plans and has done: its plan, the trace of a step, counters, clipped heads.
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

/** Counters of this rank since the creation of the optimizer. */
typedef struct muonrt_counters {
  /** Size of the struct in bytes; set by muonrt_counters_init(). */
  uint32_t struct_size;

  /** Largest number of chunks that were in flight at the same time. */
  int32_t chunks_resident_peak;

  /** Number of allocations of device memory, including memory that host and device share. */
  int64_t allocations;

  /** Bytes of these allocations. */
  int64_t allocated_bytes;

  /** Number of streams, events and blocks of queues that were created. */
  int64_t objects;

  /** Number of exchanges between ranks. */
  int64_t exchanges;

  /** Bytes sent to other ranks. */
  int64_t bytes_sent;

  /** Number of matrices that this rank has orthogonalized. */
  int64_t orthogonalized;

  /** Bytes of state and parameters that this rank has written in its last save. */
  int64_t saved_bytes;

  /**
   * Those of these bytes that belong to parameters. A parameter adds none if it is saved as its
   * master weights.
   */
  int64_t saved_param_bytes;
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
 * NULL and `capacity` is not 0;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_describe_plan(char* buffer, int64_t capacity,
                                                          int64_t* needed,
                                                          const muonrt_optimizer_t* optimizer,
                                                          enum muonrt_format format);

/**
 * Prints the stages of the last step.
 *
 * MUONRT_FORMAT_TEXT lists the stages in their order. MUONRT_FORMAT_JSON is a Chrome trace with
 * their times; it needs `trace` of muonrt_debug_options_t.
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
 * @return The statuses of muonrt_optimizer_describe_plan(), or MUONRT_ERROR_INVALID_STATE:
 * `format` is MUONRT_FORMAT_JSON, but the times were not recorded, because `trace` is 0.
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
 * @param[out] counters   The counters. Call muonrt_counters_init() on it first.
 * @param[in]  optimizer  The optimizer.
 *
 * @return MUONRT_OK, or MUONRT_ERROR_INVALID_ARGUMENT: a pointer is NULL, or `counters` is not
 * initialized.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_get_counters(muonrt_counters_t* counters,
                                                         const muonrt_optimizer_t* optimizer);

/**
 * Gets the attention heads that QK-clip has clipped in the last committed step.
 *
 * Threads: one at a time per optimizer. Collective: no.
 *
 * @param[out] layers     `capacity` elements; receives the layers, ascending. May be NULL if
 *                        `capacity` is 0.
 * @param[out] heads      `capacity` elements; receives the query heads, ascending within a layer.
 *                        May be NULL if `capacity` is 0.
 * @param[in]  capacity   Number of elements in `layers` and `heads`, >= 0.
 * @param[out] n_heads    Number of clipped heads, even if it exceeds `capacity`.
 * @param[in]  optimizer  The optimizer.
 *
 * @return MUONRT_OK, or MUONRT_ERROR_INVALID_ARGUMENT: a required pointer is NULL, or `capacity` is
 * out of range.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_get_clipped_heads(int32_t* layers, int32_t* heads,
                                                              int64_t capacity, int64_t* n_heads,
                                                              const muonrt_optimizer_t* optimizer);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_INSPECT_H */
