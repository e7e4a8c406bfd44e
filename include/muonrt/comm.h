/* muonrt/comm.h - how ranks meet and talk. */
#ifndef MUONRT_COMM_H
#define MUONRT_COMM_H

#include "muonrt/base.h"
#include "muonrt/transport.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A communicator: a fixed set of ranks 0 .. size-1. Use it from one thread at a time; only
 * muonrt_comm_abort may be called from any thread at any time. An optimizer takes a duplicate of
 * its own at creation, so a communicator may be destroyed before the optimizers made from it.
 *
 * Of every handle of muonrt: one that was destroyed (also twice), or is of another kind, gives
 * INVALID_ARGUMENT; in a child of fork all calls return INVALID_STATE, and destroy ends nothing
 * that the parent has. A destroy that is refused says why in muonrt_get_last_error. */
typedef struct muonrt_comm muonrt_comm_t;

/* What the ranks share that are threads of one process. */
typedef struct muonrt_thread_group muonrt_thread_group_t;

/* One rank, alone. Errors: INVALID_ARGUMENT, OUT_OF_MEMORY. */
MUONRT_API muonrt_status_t muonrt_comm_create_self(muonrt_comm_t** comm);

/* The meeting place of `size` threads, 1 <= size <= 4096. Destroy it after the last
 * muonrt_comm_create_thread; communicators made from it live on; destroy accepts NULL.
 * Errors: INVALID_ARGUMENT, OUT_OF_MEMORY. Threads: any. */
MUONRT_API muonrt_status_t muonrt_thread_group_create(muonrt_thread_group_t** group, int32_t size);
MUONRT_API void muonrt_thread_group_destroy(muonrt_thread_group_t* group);

/* The communicator of thread `rank`; each rank is taken once. Not collective.
 * Errors: INVALID_ARGUMENT for a null pointer, a rank outside the group or taken already;
 * OUT_OF_MEMORY. Threads: any. */
MUONRT_API muonrt_status_t muonrt_comm_create_thread(muonrt_comm_t** comm,
                                                     muonrt_thread_group_t* group, int32_t rank);

/* A communicator that the caller's functions carry (see muonrt/transport.h). Not collective.
 * *transport may be freed afterwards, `state` not before `destroy` is called.
 * Errors: INVALID_ARGUMENT for a missing function, a bad rank or size. */
MUONRT_API muonrt_status_t muonrt_comm_create_callbacks(muonrt_comm_t** comm,
                                                        const muonrt_transport_t* transport);

/* Not while a call on it runs in another thread: end that with muonrt_comm_abort first. Peers that
 * wait for this rank end with COMM. Accepts NULL. */
MUONRT_API void muonrt_comm_destroy(muonrt_comm_t* comm);

/* This rank's number, and how many there are. Errors: INVALID_ARGUMENT for a null pointer. */
MUONRT_API muonrt_status_t muonrt_comm_get_rank(int32_t* rank, const muonrt_comm_t* comm);
MUONRT_API muonrt_status_t muonrt_comm_get_size(int32_t* size, const muonrt_comm_t* comm);

/* Every wait of this communicator, and of duplicates taken later, ends after so many milliseconds
 * with TIMEOUT: 1 .. 31622400000 (366 days); 600000 (ten minutes) by default. Local.
 * Errors: INVALID_ARGUMENT. */
MUONRT_API muonrt_status_t muonrt_comm_set_timeout(muonrt_comm_t* comm, int64_t milliseconds);

/* Publishes an error: pending and later operations of every rank end with `status` and the message.
 * It reaches optimizers and communicators that this rank has made from this one, or is making, too:
 * a step that runs or waits ends, on every rank. (Over MPI and callbacks one that comes in the very
 * duplication may leave a peer to its deadline.) A status that says what becomes of a step
 * (INVALID_ARGUMENT, MISMATCH, CALLBACK, OUT_OF_MEMORY, UNDECIDED, TORN) is published as ABORTED.
 * Over NCCL it waits three seconds at most for what is under way to end (muonrt/nccl.h). Errors:
 * INVALID_ARGUMENT for a status that is no error of muonrt/base.h. Threads: any. */
MUONRT_API muonrt_status_t muonrt_comm_abort(muonrt_comm_t* comm, muonrt_status_t status,
                                             const char* message);

/* Host memory, blocking, collective over all ranks; for the trainer's own data.
 * barrier: returns when every rank has called it.
 * allgather: `all` (size x bytes) receives `bytes` from every rank, in rank order.
 * exchange: all-to-all-v; at most one message for each ordered pair of ranks, sizes known to both
 * sides, empty pairs left out by both. A message to oneself is allowed.
 * Errors: COMM, TIMEOUT, ABORTED, MISMATCH (sizes), INVALID_ARGUMENT. A null handle or buffer is
 * found before anything is sent, and only here: the peers wait. A bad peer or message, and want of
 * memory (COMM), are published and end the communicator on all ranks. */
MUONRT_API muonrt_status_t muonrt_comm_barrier(muonrt_comm_t* comm);
MUONRT_API muonrt_status_t muonrt_comm_allgather(muonrt_comm_t* comm, const void* mine, void* all,
                                                 int64_t bytes);
MUONRT_API muonrt_status_t muonrt_comm_exchange(muonrt_comm_t* comm, const muonrt_message_t* sends,
                                                int64_t n_sends, const muonrt_message_t* receives,
                                                int64_t n_receives);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_COMM_H */
