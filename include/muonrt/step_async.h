/**
 * @file muonrt/step_async.h
 * A step that runs while the caller continues.
 *
 * muonrt_optimizer_step() is muonrt_optimizer_step_async() followed by muonrt_optimizer_wait().
 * Between these two calls the step is in flight. Its results have the same bits.
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
 *   - CUDA: `stream` of muonrt_step_args_t waits for the end of the step. Work that is enqueued on
 *     it after the call, and work on other streams that waits for such work, may read and write
 *     parameters and gradients, and may overwrite or free what the pointers of the arguments refer
 *     to. If the step is not committed, this work finds the old parameters. Every other access is a
 *     data race, also that of the host.
 *   - Host: the step reads gradients and writes parameters until muonrt_optimizer_wait() returns.
 *     Until then gradients may be read, and parameters may be neither read nor written.
 *   - State and the caller's master weights belong to the step until muonrt_optimizer_wait()
 *     returns. Parameters and gradients remain bound until then.
 *   - The arguments and their lists are copied during the call. On the host so are the values of
 *     type `float`.
 *
 * @par Other calls while a step is in flight
 *   - muonrt_optimizer_step(), muonrt_optimizer_step_async(), muonrt_optimizer_save(),
 *     muonrt_optimizer_save_begin(), muonrt_optimizer_load() and muonrt_optimizer_copy_state() (for
 *     `to`) first complete the step. If it has failed, they return its error and do nothing else.
 *     muonrt_optimizer_recover() also completes it, and continues after an error. The report of the
 *     step is lost.
 *   - muonrt_optimizer_destroy() waits for the work of the step. If the step is skipped or
 *     rejected, the other ranks cannot learn why, and their call returns MUONRT_ERROR_COMM.
 *   - Functions that bind buffers, change settings, counts or master weights, or give access to
 *     state or times return MUONRT_ERROR_INVALID_STATE: muonrt_optimizer_set_grad(), _set_grads(),
 *     _set_data(), _set_group(), _set_step(), _set_update_count(), _reset_masters(),
 *     _get_state_shards() and _get_trace().
 *   - All other functions return values that do not include the step.
 *   - muonrt_comm_abort() ends the step as it ends muonrt_optimizer_step().
 *
 * @par Progress
 * On CUDA the GPU runs the step, and on the host threads of muonrt do. If only the caller's thread
 * may use the communicator (`caller_thread_only` of muonrt_transport_t, and MPI without
 * MPI_THREAD_MULTIPLE), the exchanges run only inside muonrt_optimizer_wait(). Functions of the
 * caller (muonrt/transport.h, muonrt/distributed.h) may be called while the caller's thread is
 * outside of muonrt.
 *
 * @par Communication while a step is in flight
 *   - NCCL: enqueue collectives of other communicators on streams that wait for `stream`, because
 *     NCCL requires one order of operations on all GPUs; see muonrt_comm_create_nccl().
 *   - Ranks that are threads of one process and share a GPU must pass different streams, because
 *     the step of a rank would otherwise wait for the step of another rank, which needs it.
 *   - If duplicates of a transport share its state (`duplicate` of muonrt_transport_t is NULL), do
 *     not use another communicator with this state.
 *
 * `graphs` of the tuning options works as in muonrt_optimizer_step(), and a `stream` that is being
 * captured is rejected.
 *
 * Complete the step, or destroy the optimizer, before the process exits. On the host the threads of
 * muonrt would otherwise run while the process destroys its global objects, and it may crash. Also
 * complete the step before fork(), because the child would inherit half-written parameters.
 */
#ifndef MUONRT_STEP_ASYNC_H
#define MUONRT_STEP_ASYNC_H

#include "muonrt/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Enqueues one step and returns before it has ended.
 *
 * Threads: one at a time per optimizer. Collective: over the optimizer's ranks; other ranks may
 * call muonrt_optimizer_step() instead.
 *
 * @par Waits
 * Most steps wait neither for the GPU nor for other ranks. The call waits
 *   - until the checks of the step are complete: in all steps until one is committed, and in the
 *     cases that muonrt_optimizer_step() lists;
 *   - for one number of each other rank, with `block_period`, `update_every` or `omit_inactive`;
 *   - for the whole step if it collects statistics (`health_every`);
 *   - for every exchange, with a communicator of muonrt_comm_create_staged() over several ranks;
 *   - for the work on `stream` if the step has more than 512 kernels, because a GPU queues a
 *     limited number of launches;
 *   - for earlier exchanges of the step if more than 256 messages of NCCL are in flight;
 *   - for an earlier step in flight.
 *
 * @param[in] optimizer  The optimizer.
 * @param[in] args       The arguments of the step, which may be freed after the call. See above for
 *                       what its pointers refer to.
 *
 * @return MUONRT_OK: the step is in flight. Invalid arguments, differences between ranks, and
 * faults are returned by muonrt_optimizer_wait(). Otherwise an error, and no step is in flight:
 *   - an error of an earlier step that was in flight;
 *   - MUONRT_ERROR_MISMATCH: with `block_period` or `update_every`, the numbers of committed steps
 *     differ between ranks. Nothing has changed.
 *   - MUONRT_ERROR_COMM, _TIMEOUT, _ABORTED, _DEVICE, _UNDECIDED, _TORN: a fault while the step was
 *     enqueued, as from muonrt_optimizer_step().
 *   - MUONRT_ERROR_INVALID_STATE: an earlier error has made the optimizer unusable.
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `optimizer` is invalid.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_step_async(muonrt_optimizer_t* optimizer,
                                                       const muonrt_step_args_t* args);

/**
 * Completes the step in flight, and returns what muonrt_optimizer_step() would have returned.
 *
 * Threads: one at a time per optimizer; any thread that may use the communicator. Collective: over
 * the optimizer's ranks, because after a step that was skipped or rejected the ranks exchange the
 * reason. Blocking.
 *
 * @param[out] report     What the step did; unchanged if an error is returned. `seconds` is the
 *                        time from the call of muonrt_optimizer_step_async() to the end of this
 *                        one. May be NULL.
 * @param[in]  optimizer  The optimizer.
 *
 * @return The status of the step; see muonrt_optimizer_step(). Also
 *   - MUONRT_ERROR_INVALID_STATE: no step is in flight;
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `optimizer` is invalid, or `report` is not initialized; in
 *     this case the step remains in flight.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_wait(muonrt_step_report_t* report,
                                                 muonrt_optimizer_t* optimizer);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_STEP_ASYNC_H */
