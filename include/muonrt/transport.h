/* muonrt/transport.h - carries a communicator over functions of the caller's own. */
#ifndef MUONRT_TRANSPORT_H
#define MUONRT_TRANSPORT_H

#include "muonrt/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Contiguous bytes to or from one peer. */
typedef struct muonrt_message {
  int32_t peer;
  int32_t reserved; /* 0 */
  void* data;       /* read if sent, written if received; host memory, borrowed for the call */
  int64_t bytes;    /* > 0 */
} muonrt_message_t;

/* How the ranks of one communicator talk, as a table of functions. Fill it with
 * muonrt_transport_init first, then with what the transport offers; muonrt copies it.
 *
 * Order: the functions are collective and called in the same order on every rank; an exchange
 * concerns only the ranks it names, and the exchanges that two ranks share have the same order on
 * both.
 * Blocking: each returns when its work is done, when `timeout_ms` is over (MUONRT_ERROR_TIMEOUT),
 * or soon after `abort` was called on any rank (then with the status given there); never later.
 * Threads: one call at a time, not always by the same thread unless `caller_thread_only` is 1. Only
 * `abort` and `published` may come from another thread at any moment, also while another function
 * runs.
 * Ownership: `state` is muonrt's from the moment a communicator was made of it. Buffers are host
 * memory, belong to muonrt, and must not be touched after the return.
 * Errors: any muonrt_status_t but MUONRT_OK and MUONRT_SKIPPED; then `message` (`message_capacity`
 * bytes, > 0) holds a text that names the ranks concerned, ended by a zero. It is "" at the call.
 * After an error the transport is not used again but for `abort` and `destroy`.
 * No function may throw. One that ends its thread (pthread_exit, cancellation) ends the
 * communicator with ABORTED, and the thread ends. */
typedef struct muonrt_transport {
  uint32_t struct_size;
  int32_t rank;               /* 0 <= rank < size; no default: -1 until set */
  int32_t size;               /* >= 1; no default: 0 until set */
  int32_t caller_thread_only; /* 1: called only by threads that are inside a muonrt function; 0 */
  const char* name;           /* for messages, copied; NULL: "callback" */
  void* state;                /* handed to every function; NULL */

  /* All-to-all-v: at most one message for each ordered pair of ranks, never to oneself, both sides
   * know the size, empty pairs are left out by both. Returns when every receive is complete and
   * every send buffer may be reused. MUONRT_ERROR_MISMATCH if a pair's sizes differ. No default. */
  muonrt_status_t (*exchange)(void* state, const muonrt_message_t* sends, int64_t n_sends,
                              const muonrt_message_t* receives, int64_t n_receives,
                              int64_t timeout_ms, char* message, int64_t message_capacity);

  /* `all` (size x bytes) receives `bytes` (> 0) from every rank, in rank order. No default. */
  muonrt_status_t (*allgather)(void* state, const void* mine, void* all, int64_t bytes,
                               int64_t timeout_ms, char* message, int64_t message_capacity);

  /* out[i] <- maximum over all ranks of in[i], n > 0; NaN wins over every number, +0 over -0.
   * `in` and `out` do not overlap. NULL: built from allgather. */
  muonrt_status_t (*reduce_max)(void* state, const float* in, float* out, int64_t n,
                                int64_t timeout_ms, char* message, int64_t message_capacity);

  /* out[i] <- sum over all ranks of in[i], n > 0. Otherwise as reduce_max. */
  muonrt_status_t (*reduce_sum)(void* state, const int64_t* in, int64_t* out, int64_t n,
                                int64_t timeout_ms, char* message, int64_t message_capacity);

  /* Makes a transport of its own over the same ranks: fills `duplicate`, which is
   * `duplicate->struct_size` bytes of muonrt's with every default and this transport's rank and
   * size: set fields, write no more than that. Afterwards both are used by
   * different threads at the same time and destroyed in any order. NULL: duplicates share this
   * state; muonrt then makes one call at a time, and the program must use the communicators that
   * share it in the same order on every rank. */
  muonrt_status_t (*duplicate)(void* state, struct muonrt_transport* duplicate, int64_t timeout_ms,
                               char* message, int64_t message_capacity);

  /* Publishes an error: running and later calls of every rank end with it, as soon as may be. Does
   * not block. After a call from beside, where `caller_thread_only`, called once more with the same
   * error by the thread of the next operation. NULL: the peers learn of it by their timeouts. */
  void (*abort)(void* state, muonrt_status_t status, const char* message);

  /* Called once, after the last other call, by any thread (by one inside a muonrt function if
   * `caller_thread_only`). Not collective: must not wait for peers. NULL: nothing to do. */
  void (*destroy)(void* state);

  /* MUONRT_OK, or what a peer has published by now, with its text in `message`, also between two
   * operations. Does not block. Asked while ranks wait for one another elsewhere (NCCL). NULL: such
   * waits learn of it by their timeouts. */
  muonrt_status_t (*get_published_error)(void* state, char* message, int64_t message_capacity);
} muonrt_transport_t;

/* Sets every field to its default; see muonrt/base.h. */
MUONRT_API void muonrt_transport_init_sized(muonrt_transport_t* transport, uint32_t size);
#define muonrt_transport_init(transport) \
  muonrt_transport_init_sized((transport), sizeof(muonrt_transport_t))

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_TRANSPORT_H */
