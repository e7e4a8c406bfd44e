/**
 * @file muonrt/step_async.h
 * A step that runs while the caller continues.
 *
 * muonrt_optimizer_step_async() starts a step, and muonrt_optimizer_wait() completes it. Between
 * these two calls, the step is in flight. The results are bitwise identical to those of
 * muonrt_optimizer_step().
 *
 * @code
 * for (i = 0; i < n; ++i) {
 *   enqueue_forward_and_backward(stream);
 *   if (i > 0) check(muonrt_optimizer_wait(&report, optimizer));
 *   check(muonrt_optimizer_step_async(optimizer, &args));
 * }
 * check(muonrt_optimizer_wait(&report, optimizer));
 * @endcode
 *
 * @par What the caller may access while a step is in flight
 *   - CUDA: muonrt_optimizer_step_async() makes `stream` of muonrt_step_args_t wait for the end of
 *     the step. Work that you enqueue on this stream afterwards, and work on other streams that
 *     waits for this work, may read and write parameters and gradients. This work may also
 *     overwrite or free the values to which the arguments point. If the step is not committed, this
 *     work reads the old parameters. Any other access, including one from the host, is a data race.
 *   - Host: the step reads gradients and writes parameters until muonrt_optimizer_wait() returns.
 *     Until then, the caller may read gradients but not write them, and may neither read nor write
 *     parameters.
 *   - Before muonrt_optimizer_wait() returns, do not access state, or master weights that belong to
 *     the caller, and do not free the buffers of parameters and gradients.
 *   - muonrt_optimizer_step_async() copies the arguments and the lists to which they point. On the
 *     host, it also copies the values of type `float`.
 *
 * @par Other calls while a step is in flight
 *   - muonrt_optimizer_step(), muonrt_optimizer_step_async(), muonrt_optimizer_save(),
 *     muonrt_optimizer_save_begin(), muonrt_optimizer_load() and muonrt_optimizer_copy_state() (for
 *     its argument `to`) complete the step before they do anything else. If the step has failed,
 *     they return its error and do nothing else. muonrt_optimizer_recover() also completes the
 *     step, but continues if the step has failed. All these functions discard the report of the
 *     step.
 *   - muonrt_optimizer_destroy() waits for the work of the step. If the step is skipped or
 *     rejected, the other ranks cannot receive the reason from this rank, so their call to
 *     muonrt_optimizer_wait() or muonrt_optimizer_step() returns MUONRT_ERROR_COMM.
 *   - The following functions return MUONRT_ERROR_INVALID_STATE, because they change or access data
 *     that the step uses: muonrt_optimizer_set_grad(), _set_grads(), _set_data(), _set_group(),
 *     _set_step(), _set_update_count(), _reset_masters(), _get_state_shards() and _get_trace().
 *   - All other functions return the values from before the step.
 *   - muonrt_comm_abort() ends the step in flight with an error.
 *
 * @par Progress
 * On CUDA, the GPU executes the step; on the host, muonrt's threads execute it. If only the
 * caller's thread may use the communicator (`caller_thread_only` of muonrt_transport_t, or MPI
 * without MPI_THREAD_MULTIPLE), exchanges run only inside muonrt_optimizer_wait(). In all other
 * cases, muonrt may call the caller's functions (muonrt/transport.h, muonrt/distributed.h) at any
 * time while the step is in flight.
 *
 * @par Communication while a step is in flight
 *   - NCCL: enqueue collectives of other communicators on streams that wait for `stream`, because
 *     NCCL requires the same order of operations on all GPUs; see muonrt_comm_create_nccl().
 *   - Ranks that are threads of one process and share a GPU must pass different streams. On a
 *     shared stream, the step of one rank would wait for the step of another rank, and that step
 *     would wait for data from the first rank.
 *   - If `duplicate` of muonrt_transport_t is NULL, all duplicates share the `state` of the
 *     transport. Do not use another communicator with this `state` while a step is in flight.
 *
 * `graphs` of muonrt_tuning_options_t has the same effect as in muonrt_optimizer_step(). A `stream`
 * that is being captured into a CUDA graph is rejected.
 *
 * Complete the step, or destroy the optimizer, before the process exits. Otherwise, on the host,
 * muonrt's threads may still be running while the process destroys its global objects, and the
 * process may crash. Also complete the step before fork(), because the child would otherwise
 * inherit partly written parameters.
 */
#ifndef MUONRT_STEP_ASYNC_H
#define MUONRT_STEP_ASYNC_H

#include "muonrt/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Enqueues one step and returns before the step has completed.
 *
 * Threads: one at a time per optimizer. Collective: over the optimizer's ranks, some of which may
 * call muonrt_optimizer_step() instead.
 *
 * @par Waits
 * In most steps, the call waits neither for the GPU nor for other ranks. It waits only
 *   - for the checks that values are finite and replicas are equal: in every step until one is
 *     committed, and in the cases that the comment of muonrt_optimizer_step() lists;
 *   - for one number from every other rank, if `block_period`, `update_every` or `omit_inactive` is
 *     set;
 *   - for the whole step if it collects statistics (`health_every`);
 *   - for every exchange, if the communicator was created by muonrt_comm_create_staged() and has
 *     more than one rank;
 *   - for the work on `stream` if the step launches more than 512 kernels, because a GPU queues a
 *     limited number of launches;
 *   - for earlier exchanges of the step if more than 256 NCCL messages are in flight;
 *   - for an earlier step that is still in flight.
 *
 * @param[in] optimizer  The optimizer.
 * @param[in] args       The arguments of the step. You may free the struct after the call, but the
 *                       values to which it points must remain unchanged for longer; see the top of
 *                       this file.
 *
 * @return MUONRT_OK if the step is now in flight. muonrt_optimizer_wait() then reports invalid
 * arguments, differences between ranks, and faults. If the call returns an error, no step is in
 * flight. The possible errors are:
 *   - the error of an earlier step, if one was in flight;
 *   - MUONRT_ERROR_MISMATCH: `block_period` or `update_every` is set, and the numbers of committed
 *     steps differ between ranks. Nothing has changed.
 *   - MUONRT_ERROR_COMM, _TIMEOUT, _ABORTED, _DEVICE, _UNDECIDED, _TORN: a fault while the step was
 *     being enqueued, with the same consequences as in muonrt_optimizer_step().
 *   - MUONRT_ERROR_INVALID_STATE: an earlier error has made the optimizer unusable.
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `optimizer` is invalid.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_step_async(muonrt_optimizer_t* optimizer,
                                                       const muonrt_step_args_t* args);

/**
 * Completes the step in flight, and returns what muonrt_optimizer_step() would have returned.
 *
 * Threads: any thread that may use the communicator, but one at a time per optimizer. Collective:
 * over the optimizer's ranks, because the ranks exchange the reason if the step was skipped or
 * rejected. Blocking.
 *
 * @param[out] report     What the step did; unchanged if an error is returned. `seconds` is the
 *                        time from the call to muonrt_optimizer_step_async() until this call
 *                        returns. May be NULL.
 * @param[in]  optimizer  The optimizer.
 *
 * @return The status of the step; see muonrt_optimizer_step(). Also
 *   - MUONRT_ERROR_INVALID_STATE: no step is in flight;
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `optimizer` is invalid, or `report` is not initialized; the
 *     step then remains in flight.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_wait(muonrt_step_report_t* report,
                                                 muonrt_optimizer_t* optimizer);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_STEP_ASYNC_H */
