/**
 * @file muonrt/comm.h
 * Communicators, which the ranks of a job use to exchange data.
 *
 * The functions in this header create communicators for a single rank, for ranks that are threads
 * of one process, and for a transport that the caller implements. Other headers have functions for
 * MPI (muonrt/mpi_comm.h), TCP (muonrt/rendezvous.h) and GPU memory (muonrt/nccl.h).
 */
#ifndef MUONRT_COMM_H
#define MUONRT_COMM_H

#include "muonrt/base.h"
#include "muonrt/transport.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * A communicator: a fixed set of ranks, numbered from 0 to size - 1.
 *
 * Use a communicator from one thread at a time; only muonrt_comm_abort() may be called from any
 * thread at any time. An optimizer duplicates its communicator when it is created, so you can
 * destroy the communicator before the optimizer. After an error in the optimizer, your communicator
 * is still usable, unless the error affects a resource that it shares with its duplicates: a TCP
 * connection that was lost, the `state` of a transport without `duplicate` (muonrt/transport.h), or
 * a borrowed ncclComm_t (muonrt/nccl.h).
 *
 * @par Handles
 * These rules apply to the handles of communicators, thread groups and optimizers:
 *   - A function that receives a handle of a different type, or a handle that has been destroyed,
 *     returns MUONRT_ERROR_INVALID_ARGUMENT.
 *   - In a child process that was created by fork(), functions that receive a handle of the parent
 *     return MUONRT_ERROR_INVALID_STATE. If the child destroys a handle of the parent, nothing is
 *     freed, and the parent is not affected.
 *   - The destroy functions accept NULL. They return no status. If a destroy function rejects its
 *     handle, muonrt_get_last_error() returns the reason.
 */
typedef struct muonrt_comm muonrt_comm_t;

/** A group of ranks that are threads of one process; see muonrt_thread_group_create(). */
typedef struct muonrt_thread_group muonrt_thread_group_t;

/**
 * Creates a communicator with a single rank, the caller.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] comm  The new communicator; NULL on error. Destroy it with muonrt_comm_destroy().
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `comm` is NULL;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_comm_create_self(muonrt_comm_t** comm);

/**
 * Creates a thread group. Each thread of the group then calls muonrt_comm_create_thread() to create
 * its communicator.
 *
 * Threads: any. Collective: no; one thread calls it for all ranks.
 *
 * @param[out] group  The new thread group; NULL on error. Destroy it with
 *                    muonrt_thread_group_destroy().
 * @param[in]  size   Number of ranks, 1 to 4096.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `group` is NULL, or `size` is out of range;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_thread_group_create(muonrt_thread_group_t** group, int32_t size);

/**
 * Destroys a thread group.
 *
 * Call it after the last call to muonrt_comm_create_thread(). Communicators of the group remain
 * usable.
 *
 * Threads: any. Collective: no.
 *
 * @param[in] group  The thread group; NULL is accepted.
 */
MUONRT_API void muonrt_thread_group_destroy(muonrt_thread_group_t* group);

/**
 * Creates the communicator of one rank of a thread group.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] comm   The new communicator; NULL on error. Destroy it with muonrt_comm_destroy().
 * @param[in]  group  The thread group.
 * @param[in]  rank   Rank of the thread, 0 to size - 1. Each rank can be used only once.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: a pointer is NULL, or `rank` is out of range or was used
 *     before;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_comm_create_thread(muonrt_comm_t** comm,
                                                     muonrt_thread_group_t* group, int32_t rank);

/**
 * Creates a communicator from functions that the caller implements; see muonrt/transport.h.
 *
 * If the call fails, `transport->state` still belongs to the caller, and muonrt does not call
 * `transport->destroy`.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] comm       The new communicator; NULL on error. Destroy it with
 *                        muonrt_comm_destroy().
 * @param[in]  transport  The transport. muonrt copies the struct, so you may free it after the
 *                        call. Keep `transport->state` until muonrt calls `destroy`.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: a pointer is NULL, `exchange` or `allgather` is missing, or
 *     `rank`, `size` or another field is out of range;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_comm_create_callbacks(muonrt_comm_t** comm,
                                                        const muonrt_transport_t* transport);

/**
 * Destroys a communicator.
 *
 * If another thread is inside a call on this communicator, muonrt_comm_destroy() waits until that
 * call has returned. To end that call early, use muonrt_comm_abort(). The functions of a transport
 * (muonrt/transport.h) must not destroy their own communicator. If one of them calls
 * muonrt_comm_destroy(), the call has no effect, and muonrt_get_last_error() returns the reason.
 *
 * If a peer is waiting for this rank, the effect depends on the transport. If the ranks are threads
 * or are connected by TCP, the peer's operation returns MUONRT_ERROR_COMM. With MPI or callbacks,
 * the peer may wait until its timeout.
 *
 * Threads: one at a time per communicator. Collective: no.
 *
 * @param[in] comm  The communicator; NULL is accepted.
 */
MUONRT_API void muonrt_comm_destroy(muonrt_comm_t* comm);

/**
 * Gets the caller's rank in the communicator.
 *
 * Threads: one at a time per communicator. Collective: no.
 *
 * @param[out] rank  The rank, 0 to size - 1.
 * @param[in]  comm  The communicator.
 *
 * @return MUONRT_OK, or MUONRT_ERROR_INVALID_ARGUMENT if a pointer is NULL.
 */
MUONRT_API muonrt_status_t muonrt_comm_get_rank(int32_t* rank, const muonrt_comm_t* comm);

/**
 * Gets the number of ranks of the communicator.
 *
 * Threads: one at a time per communicator. Collective: no.
 *
 * @param[out] size  The number of ranks, >= 1.
 * @param[in]  comm  The communicator.
 *
 * @return MUONRT_OK, or MUONRT_ERROR_INVALID_ARGUMENT if a pointer is NULL.
 */
MUONRT_API muonrt_status_t muonrt_comm_get_size(int32_t* size, const muonrt_comm_t* comm);

/**
 * Sets the timeout for operations on the communicator and on duplicates that are created later.
 *
 * An operation that does not complete within this time returns MUONRT_ERROR_TIMEOUT. The default is
 * 600000 ms (ten minutes).
 *
 * Threads: one at a time per communicator. Collective: no.
 *
 * @param[in] comm          The communicator.
 * @param[in] milliseconds  The timeout in ms, 1 to 31622400000 (366 days).
 *
 * @return MUONRT_OK, or MUONRT_ERROR_INVALID_ARGUMENT if `comm` is NULL or `milliseconds` is out of
 * range.
 */
MUONRT_API muonrt_status_t muonrt_comm_set_timeout(muonrt_comm_t* comm, int64_t milliseconds);

/**
 * Aborts a communicator: on every rank, all pending and later operations return an error.
 *
 * On every rank, the call also aborts the optimizers and communicators that were created from
 * `comm` or are being created from it. A step in progress therefore also returns the error.
 * However, if a communicator that uses MPI or callbacks is being duplicated at the same time, a
 * peer may wait until its timeout.
 *
 * With NCCL, the call may block for up to three seconds; see muonrt/nccl.h.
 *
 * Threads: any, at any time. Collective: no.
 *
 * @param[in] comm     The communicator.
 * @param[in] status   The error that the operations return. If `status` is INVALID_ARGUMENT,
 *                     CALLBACK, MISMATCH, OUT_OF_MEMORY, UNDECIDED or TORN, they return
 *                     MUONRT_ERROR_ABORTED instead, because a step uses these statuses to report
 *                     whether it has changed parameters.
 * @param[in] message  The message that muonrt_get_last_error() returns on all ranks; NULL means
 *                     "aborted by the caller".
 *
 * @return MUONRT_OK, or MUONRT_ERROR_INVALID_ARGUMENT if `comm` is NULL or `status` is not an error
 * status of muonrt/base.h.
 */
MUONRT_API muonrt_status_t muonrt_comm_abort(muonrt_comm_t* comm, muonrt_status_t status,
                                             const char* message);

/**
 * Waits until all ranks have called this function.
 *
 * Threads: one at a time per communicator. Collective: over all ranks. Blocking.
 *
 * @param[in] comm  The communicator.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `comm` is NULL. Only this rank returns the error, while its
 *     peers wait;
 *   - MUONRT_ERROR_COMM: a peer is no longer reachable, or a rank has run out of memory;
 *   - MUONRT_ERROR_TIMEOUT: a rank did not take part before the timeout;
 *   - MUONRT_ERROR_ABORTED, or another status that a rank has passed to muonrt_comm_abort().
 *
 * After an error other than INVALID_ARGUMENT, the communicator is unusable on all ranks, and its
 * operations return this error.
 */
MUONRT_API muonrt_status_t muonrt_comm_barrier(muonrt_comm_t* comm);

/**
 * Gathers a block of bytes from every rank.
 *
 * Threads: one at a time per communicator. Collective: over all ranks. Blocking.
 *
 * @param[out] all    size * `bytes` bytes of host memory: the blocks of all ranks, in rank order.
 * @param[in]  comm   The communicator.
 * @param[in]  mine   `bytes` bytes of host memory: the block of this rank. Must not overlap `all`.
 * @param[in]  bytes  Size of a block in bytes, >= 0, equal on all ranks. With 0, the call returns
 *                    immediately, and the buffers may be NULL.
 *
 * @return The statuses of muonrt_comm_barrier(), or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: a pointer is NULL, or `bytes` is out of range. Only this rank
 *     returns the error, while its peers wait;
 *   - MUONRT_ERROR_MISMATCH: `bytes` differs between ranks, and the ranks are threads or are
 *     connected by TCP. With MPI or callbacks, different sizes may cause another error or wrong
 *     data.
 *
 * If only some ranks pass 0 for `bytes`, the other ranks wait until their timeout.
 */
MUONRT_API muonrt_status_t muonrt_comm_allgather(void* all, muonrt_comm_t* comm, const void* mine,
                                                 int64_t bytes);

/**
 * Sums numbers over all ranks, for example the loss of a training step.
 *
 * Every rank receives the values of all ranks and adds them in double precision in rank order:
 * `((values of rank 0 + values of rank 1) + values of rank 2) + ...`. The sums are therefore
 * bitwise identical on all ranks, in every run, and with every transport. Infinities and NaN follow
 * IEEE 754, and a sum that is NaN is always the same quiet NaN.
 *
 * @code
 * // The mean loss of all tokens: each rank adds its own losses, and counts its tokens.
 * double sums[2] = {loss_sum, token_count};
 * check(muonrt_comm_allreduce_sum(sums, comm, sums, 2));
 * const double mean = sums[0] / sums[1];
 * @endcode
 *
 * The function is intended for a small number of values, because it sends every value to every
 * rank. Each rank receives 8 * `n` bytes (at most 8 MiB) from every rank. During the call, the rank
 * needs 8 * `n` bytes of host memory for the sums, and at most the larger of 4 MiB and 8 * size
 * bytes for the values that it receives.
 *
 * Threads: one at a time per communicator. Collective: over all ranks. Blocking.
 *
 * @param[out] sums    The `n` sums; may be the same array as `values`. Unchanged on error. NULL is
 *                     accepted if `n` is 0.
 * @param[in]  comm    The communicator.
 * @param[in]  values  The `n` values of this rank. NULL is accepted if `n` is 0.
 * @param[in]  n       Number of values, 0 to 1048576, equal on all ranks. With 0, the call only
 *                     checks that all ranks have passed 0.
 *
 * @return The statuses of muonrt_comm_barrier(), or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: a pointer is NULL, or `n` is out of range. Only this rank
 *     returns the error, while its peers wait;
 *   - MUONRT_ERROR_MISMATCH: `n` differs between ranks.
 */
MUONRT_API muonrt_status_t muonrt_comm_allreduce_sum(double* sums, muonrt_comm_t* comm,
                                                     const double* values, int64_t n);

/**
 * Sends messages to other ranks and receives messages from them.
 *
 * Each rank may send at most one message to each rank, including itself. The sender and the
 * receiver of a message must pass the same size. If there is nothing to send from one rank to
 * another, both ranks omit the message. A rank that exchanges no messages with other ranks does not
 * wait.
 *
 * @code
 * // Pass `n` bytes to the next rank of a ring.
 * muonrt_send_t to = {(rank + 1) % size, 0, out, n};
 * muonrt_receive_t from = {(rank + size - 1) % size, 0, in, n};
 * check(muonrt_comm_exchange(comm, &to, 1, &from, 1));
 * @endcode
 *
 * Threads: one at a time per communicator. Collective: over this rank and its peers in the two
 * lists; other ranks need not call the function. Blocking, until all receives are complete and all
 * send buffers can be reused.
 *
 * @param[in] comm        The communicator.
 * @param[in] sends       `n_sends` messages to send; NULL if `n_sends` is 0.
 * @param[in] n_sends     Number of messages to send, >= 0.
 * @param[in] receives    `n_receives` messages to receive; NULL if `n_receives` is 0.
 * @param[in] n_receives  Number of messages to receive, >= 0.
 *
 * @return The statuses of muonrt_comm_barrier(), or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: a pointer or a number is invalid. Only this rank returns the
 *     error, while its peers wait;
 *   - MUONRT_ERROR_INVALID_ARGUMENT: a message has an invalid peer, no data, 0 bytes, or a value
 *     other than 0 in `reserved`; or there are two messages to or from the same peer. After this
 *     error, the communicator is unusable on all ranks;
 *   - MUONRT_ERROR_MISMATCH: the sender and the receiver of a message pass different sizes, and the
 *     ranks are threads or are connected by TCP. With MPI or callbacks, different sizes may cause
 *     another error or wrong data.
 */
MUONRT_API muonrt_status_t muonrt_comm_exchange(muonrt_comm_t* comm, const muonrt_send_t* sends,
                                                int64_t n_sends, const muonrt_receive_t* receives,
                                                int64_t n_receives);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_COMM_H */
