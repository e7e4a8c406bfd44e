/**
 * @file muonrt/recover.h
 * Functions for continuing after a failed step: they bring the surviving ranks to the same state,
 * and copy this state to a new optimizer.
 *
 * A survivor is a rank of the optimizer that is still running after the fault.
 *
 * @par Old and new ranks
 * muonrt does not number the survivors. Each survivor keeps its old rank in the old optimizer. Its
 * new rank, from 0 to the number of survivors minus 1, is its rank in the communicator that you
 * create for the survivors. You can assign the new ranks in any order, because the old optimizer
 * stores the old ranks.
 */
#ifndef MUONRT_RECOVER_H
#define MUONRT_RECOVER_H

#include "muonrt/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What muonrt_optimizer_recover() has done, the same on every survivor. */
typedef int32_t muonrt_recovery_outcome_t;
enum muonrt_recovery_outcome {
  /**
   * No action: every survivor knew the result of the step, and all have committed the same steps.
   */
  MUONRT_RECOVERY_NONE = 0,

  /** Some survivors had committed the step, and now the others have committed it as well. */
  MUONRT_RECOVERY_ROLLED_FORWARD = 1,

  /**
   * Some survivors did not know the result of the step. No survivor had committed the step, so it
   * was discarded.
   */
  MUONRT_RECOVERY_DISCARDED = 2
};

/** How many survivors muonrt_optimizer_recover() requires. */
typedef int32_t muonrt_survivor_policy_t;
enum muonrt_survivor_policy {
  /** More than half of the optimizer's ranks, or exactly half of them including old rank 0. */
  MUONRT_SURVIVORS_MAJORITY = 0,

  /**
   * Any number. This policy is unsafe: if a network failure has split the ranks into two parts, the
   * two parts may reach different results. Use it only if you are certain that all other ranks have
   * exited.
   */
  MUONRT_SURVIVORS_ANY = 1
};

/** Policy and result of muonrt_optimizer_recover(). Call muonrt_recovery_init() first. */
typedef struct muonrt_recovery {
  /** Size of the struct in bytes; set by muonrt_recovery_init(). */
  uint32_t struct_size;

  /** Output: the action. */
  muonrt_recovery_outcome_t outcome;

  /** Output: number of committed steps after the call, the same on every survivor. */
  int64_t step;

  /**
   * Input: how many survivors are required; must be equal on all survivors. Default:
   * MUONRT_SURVIVORS_MAJORITY.
   */
  muonrt_survivor_policy_t survivor_policy;

  /** Reserved; 0. */
  int32_t reserved;
} muonrt_recovery_t;

/**
 * Sets every field of `recovery` to its default.
 *
 * Call it through the macro muonrt_recovery_init(), which passes the size.
 *
 * Threads: any.
 *
 * @param[out] recovery  The struct to fill; NULL is accepted.
 * @param[in]  size      Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_recovery_init_sized(muonrt_recovery_t* recovery, uint32_t size);
#define muonrt_recovery_init(recovery) \
  muonrt_recovery_init_sized((recovery), sizeof(muonrt_recovery_t))

/**
 * Brings the surviving ranks to the same state after a failed step.
 *
 * The ranks vote on whether to commit a step. If a rank exits during this vote, some ranks may have
 * committed the step while others do not know the result. If a survivor has committed the step,
 * this call also commits it on the other survivors, which have already received and stored their
 * updates. If no survivor has committed the step, the call discards it.
 *
 * After the call, all survivors have committed the same steps, and `step` of `recovery` is the
 * number of steps that are now committed. State that was held only by lost ranks is lost. An
 * optimizer in which a step has failed remains unusable. To continue, create a new optimizer on the
 * survivors and call muonrt_optimizer_copy_state(), or read the state yourself (muonrt/state.h).
 *
 * Call this function after a step has returned MUONRT_ERROR_COMM, _TIMEOUT, _ABORTED or _UNDECIDED
 * on some ranks. After MUONRT_ERROR_COMM, _TIMEOUT and _ABORTED, no rank has committed the step
 * that failed. The call is still necessary, because another survivor may not know the result of the
 * previous step. Every survivor must call the function, including those on which no step has
 * failed. You may call it again, with the same or with different survivors. Until the function has
 * returned, do not unbind the gradients of the failed step, and do not change gradients, parameters
 * or state.
 *
 * Threads: one at a time per optimizer. Collective: over `survivors`. Blocking; the timeout of
 * `survivors` (muonrt_comm_set_timeout()) limits every wait.
 *
 * @param[in]     optimizer  The optimizer.
 * @param[in]     survivors  A communicator that you have created for the survivors after the fault.
 *                           Its ranks are the new ranks (see the top of this file). muonrt sends
 *                           only data in host memory over it.
 * @param[in,out] recovery   Policy and result; the result is unchanged on error. NULL selects the
 *                           default policy and returns no result.
 *
 * @return MUONRT_OK, or an error. Only the affected rank returns the following error, and the other
 * survivors wait for this rank until the timeout:
 *   - MUONRT_ERROR_INVALID_ARGUMENT: a handle is invalid, `recovery` is not initialized, or its
 *     policy is unknown.
 *
 * If one of the following errors occurs, every survivor returns it:
 *   - MUONRT_ERROR_TORN: the parameters of a survivor are partly updated; or a survivor must still
 *     commit the step, but has not stored its updates, because of MUONRT_COMMIT_EAGER. Load a
 *     checkpoint.
 *   - MUONRT_ERROR_MISMATCH: the survivors are not ranks of the same optimizer, two of them have
 *     the same old rank, the policies differ, or the failed step does not explain why the numbers
 *     of committed steps differ.
 *   - MUONRT_ERROR_UNDECIDED: the policy requires more survivors; nothing has changed. Call the
 *     function again with more ranks.
 *   - MUONRT_ERROR_OUT_OF_MEMORY: nothing has changed. Call the function again.
 *
 * If `survivors` itself fails, the ranks may return different errors:
 *   - MUONRT_ERROR_COMM, _TIMEOUT, _ABORTED: call the function again with a new communicator.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_recover(muonrt_optimizer_t* optimizer,
                                                    muonrt_comm_t* survivors,
                                                    muonrt_recovery_t* recovery);

/**
 * Copies the parameters and the whole state of one optimizer to another optimizer. The two
 * optimizers can have different ranks, meshes and layouts, and a process can have a different rank
 * in each of them.
 *
 * Use this function after muonrt_optimizer_recover(): create the optimizer `to` on the survivors,
 * and on additional ranks if you have them, then call this function on all of these ranks. It
 * copies the parameters to the buffers of `to`. It also copies momentum and moments, master
 * weights, remainders, the number of committed steps, the update counts, and the seed and keys of
 * stochastic rounding. The result is bitwise identical to saving a checkpoint of `from`, including
 * parameters, and loading it into `to`. The caller must restore everything else, such as the data
 * loader.
 *
 * The ranks that pass `from` send the elements. Every element must exist on at least one of these
 * ranks. If a rank that held an element is lost, a replica of the element on another rank is
 * enough.
 *
 * Both optimizers must have the same parameters with the same dtypes and kinds of state. If a rank
 * holds the same elements of a parameter in both optimizers, the two optimizers can use the same
 * buffer for these elements. In all other cases buffers must not overlap.
 *
 * In addition to the state itself, a rank needs memory for the list of all shards of `from`, and
 * for a buffer of elements. The size of this buffer is about 64 MiB, or 256 KiB times the number of
 * ranks of `to` if that is larger.
 *
 * Threads: one at a time per optimizer. Collective: over the ranks of `to`. Blocking; `timeout_ms`
 * of the options of `to` limits every wait.
 *
 * @param[in] to    The new optimizer.
 * @param[in] from  The old optimizer, in which a step may have failed; it is not changed. NULL if
 *                  this rank does not have the old optimizer.
 *
 * @return MUONRT_OK, or an error. Only the affected rank returns the following error, and the other
 * ranks wait for this rank until the timeout:
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `to` is invalid.
 *
 * If one of the following errors occurs, every rank returns it, and nothing has changed:
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `from` is invalid, is the same optimizer as `to`, or is NULL
 *     on every rank; `from` has different parameters, dtypes or kinds of state; buffers overlap; or
 *     elements are lost. In the last case the message names the parameter, the kind of state and
 *     the first lost index.
 *   - MUONRT_ERROR_INVALID_STATE: `to` is unusable or is saving in the background, or the state of
 *     `from` is not finite.
 *   - MUONRT_ERROR_MISMATCH: the ranks pass different optimizers as `from`, or the numbers of
 *     committed steps, update counts or settings of `from` differ between ranks.
 *   - MUONRT_ERROR_TORN: a step of `from` has partly changed the parameters.
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 *
 * After the following errors `to` is unusable, and its state may be partly written:
 *   - MUONRT_ERROR_COMM, _TIMEOUT, _ABORTED, _DEVICE.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_copy_state(muonrt_optimizer_t* to,
                                                       muonrt_optimizer_t* from);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_RECOVER_H */
