/**
 * @file muonrt/transport.h
 * A transport: functions that the caller implements to exchange messages in host memory between
 * ranks.
 */
#ifndef MUONRT_TRANSPORT_H
#define MUONRT_TRANSPORT_H

#include "muonrt/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * A message to one peer: contiguous bytes of host memory, which must stay valid during the call.
 */
typedef struct muonrt_send {
  /** Rank of the receiver. */
  int32_t peer;

  /** Reserved; 0. */
  int32_t reserved;

  /** The bytes to send. */
  const void* data;

  /** Size of the message in bytes, > 0. */
  int64_t bytes;
} muonrt_send_t;

/**
 * A message from one peer: contiguous bytes of host memory, which must stay valid during the call.
 */
typedef struct muonrt_receive {
  /** Rank of the sender. */
  int32_t peer;

  /** Reserved; 0. */
  int32_t reserved;

  /** The memory that receives the bytes. */
  void* data;

  /** Size of the message in bytes, > 0. */
  int64_t bytes;
} muonrt_receive_t;

/**
 * A transport: the functions that the caller implements for a communicator.
 *
 * Call muonrt_transport_init() first, then set `rank`, `size`, `exchange` and `allgather`, and the
 * other fields as needed. Pass the struct to muonrt_comm_create_callbacks(), which copies it.
 *
 * @par Order
 * muonrt calls the functions in the same order on every rank. The exception is `exchange`, in which
 * only ranks that send or receive messages take part. If two ranks take part in the same exchanges,
 * both run these exchanges in the same order.
 *
 * @par Blocking
 * `exchange`, `allgather`, `reduce_max`, `reduce_sum` and `duplicate` must return as soon as one of
 * the following is true:
 *   - The operation is complete.
 *   - `timeout_ms` milliseconds have passed: return MUONRT_ERROR_TIMEOUT.
 *   - muonrt has called `abort` on a rank: return the status that was passed to `abort`.
 *
 * @par Threads
 * muonrt makes one call at a time, but not always from the same thread; see `caller_thread_only`.
 * The exceptions are `abort` and `get_published_error`, which muonrt can call from any thread at
 * any time, even while another function is running.
 *
 * @par Memory
 * Buffers are in host memory that belongs to muonrt. Do not access them after the function has
 * returned.
 *
 * @par Errors
 * A function reports an error by returning a value other than MUONRT_OK. muonrt treats
 * MUONRT_SKIPPED and values that are not muonrt statuses as MUONRT_ERROR_COMM. Before a function
 * returns an error, it must describe the error and name the affected ranks in `message`. The text
 * must be zero-terminated and have at most `message_capacity` (> 0) bytes, including the zero;
 * muonrt sets `message` to "" before the call. After an error, the communicator calls only `abort`,
 * `get_published_error` and `destroy`; communicators that share its `state` (see `duplicate`) may
 * still call all functions.
 *
 * The functions must not throw. If the calling thread ends inside a function (pthread_exit,
 * cancellation), muonrt lets the thread end, and the communicator fails with MUONRT_ERROR_ABORTED.
 */
typedef struct muonrt_transport {
  /** Size of the struct in bytes; set by muonrt_transport_init(). */
  uint32_t struct_size;

  /** Rank of the caller, 0 to size - 1. Default: -1, which is invalid. */
  int32_t rank;

  /** Number of ranks, >= 1. Default: 0, which is invalid. */
  int32_t size;

  /**
   * 1: muonrt calls the functions only from threads of the caller that are inside a muonrt
   * function. 0: muonrt also calls the functions from its own threads. Default: 0.
   */
  int32_t caller_thread_only;

  /** Name of the transport in messages; muonrt copies it. Default: NULL, which means "callback". */
  const char* name;

  /**
   * The first argument of every function. After muonrt_comm_create_callbacks() has succeeded, it
   * must remain valid until muonrt calls `destroy`. Default: NULL.
   */
  void* state;

  /**
   * Sends at most one message to each other rank, and receives at most one from each. Returns when
   * all receives are complete and all send buffers can be reused. Returns MUONRT_ERROR_MISMATCH if
   * the sender and the receiver of a message pass different sizes. Required.
   */
  muonrt_status_t (*exchange)(void* state, const muonrt_send_t* sends, int64_t n_sends,
                              const muonrt_receive_t* receives, int64_t n_receives,
                              int64_t timeout_ms, char* message, int64_t message_capacity);

  /**
   * Gathers `bytes` (> 0) bytes from `mine` of every rank into `all`, in rank order. `all` has
   * `bytes` bytes for each rank. Required.
   */
  muonrt_status_t (*allgather)(void* state, const void* mine, void* all, int64_t bytes,
                               int64_t timeout_ms, char* message, int64_t message_capacity);

  /**
   * Sets each of the `n` (> 0) elements of `out` to the maximum of the corresponding elements of
   * `in` on all ranks. For this comparison NaN is larger than every number, and +0 is larger than
   * -0. `in` and `out` do not overlap. Default: NULL, which makes muonrt call `allgather` instead.
   */
  muonrt_status_t (*reduce_max)(void* state, const float* in, float* out, int64_t n,
                                int64_t timeout_ms, char* message, int64_t message_capacity);

  /**
   * Sets each of the `n` (> 0) elements of `out` to the sum, modulo 2^64, of the corresponding
   * elements of `in` on all ranks. `in` and `out` do not overlap. Default: NULL, which makes muonrt
   * call `allgather` instead.
   */
  muonrt_status_t (*reduce_sum)(void* state, const int64_t* in, int64_t* out, int64_t n,
                                int64_t timeout_ms, char* message, int64_t message_capacity);

  /**
   * Creates an independent transport over the same ranks. muonrt provides the struct `*duplicate`
   * of `duplicate->struct_size` bytes. In this struct, `rank` and `size` have the values of this
   * transport, and all other fields have their defaults. The function sets the other fields as
   * needed. muonrt may then use both transports from different threads at the same time, and
   * destroy them in any order. Default: NULL, which means that all duplicates share `state`. muonrt
   * then makes one call at a time for all of them, and every rank must use the communicators that
   * share `state` in the same order.
   */
  muonrt_status_t (*duplicate)(void* state, struct muonrt_transport* duplicate, int64_t timeout_ms,
                               char* message, int64_t message_capacity);

  /**
   * Publishes an error: running and later calls on every rank return the error as soon as possible.
   * Must not block. If `caller_thread_only` is 1, the thread of the next operation repeats the call
   * with the same error, because a different thread may have made the first call. Default: NULL,
   * which means that the peers detect the error only when they time out.
   */
  void (*abort)(void* state, muonrt_status_t status, const char* message);

  /**
   * Frees `state`. muonrt calls it once, after all other calls, from any thread. If
   * `caller_thread_only` is 1, muonrt calls it from a thread that is inside a muonrt function. The
   * function is not collective and must not wait for peers. Default: NULL, which means that nothing
   * is freed.
   */
  void (*destroy)(void* state);

  /**
   * Returns the error that a peer has published with `abort`, and writes its text to `message`;
   * returns MUONRT_OK if there is none. Must not block, and must also work between operations.
   * muonrt calls it while the ranks wait for each other elsewhere, for example inside NCCL.
   * Default: NULL, which means that such waits continue until they time out.
   */
  muonrt_status_t (*get_published_error)(void* state, char* message, int64_t message_capacity);
} muonrt_transport_t;

/**
 * Sets every field of `transport` to its default.
 *
 * Call it through the macro muonrt_transport_init(), which passes the size. muonrt/base.h explains
 * how programs and libraries of different versions work together.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] transport  The struct to fill; NULL is accepted.
 * @param[in]  size       Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_transport_init_sized(muonrt_transport_t* transport, uint32_t size);
#define muonrt_transport_init(transport) \
  muonrt_transport_init_sized((transport), sizeof(muonrt_transport_t))

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_TRANSPORT_H */
