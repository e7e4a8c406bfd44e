/**
 * @file muonrt/optimizer.h
 * An optimizer that updates sharded parameters with Muon and AdamW.
 *
 * This header includes four other headers:
 *   - muonrt/group.h and muonrt/param.h: the settings and the parameters of an optimizer;
 *   - muonrt/step.h: the arguments and the report of a step;
 *   - muonrt/tuning.h: options that few programs need.
 *
 * See also muonrt/step_async.h (steps that do not block), muonrt/checkpoint.h (save and load),
 * muonrt/state.h (the state), muonrt/inspect.h (plan, trace, counters), muonrt/health.h
 * (statistics), muonrt/recover.h (recovery) and muonrt/base.h (terms such as owner and vote).
 */
#ifndef MUONRT_OPTIMIZER_H
#define MUONRT_OPTIMIZER_H

#include "muonrt/base.h"
#include "muonrt/comm.h"
#include "muonrt/group.h"
#include "muonrt/layout.h"
#include "muonrt/param.h"
#include "muonrt/step.h"
#include "muonrt/tuning.h"

#ifdef __cplusplus
extern "C" {
#endif

/** An optimizer: parameters, their state, and the plan of a step. */
typedef struct muonrt_optimizer muonrt_optimizer_t;

/** Where an optimizer computes and where its parameters and gradients are stored. */
typedef int32_t muonrt_device_t;
enum muonrt_device { MUONRT_DEVICE_HOST = 0, MUONRT_DEVICE_CUDA = 1 };

/** Identifies one kind of parameter state (muonrt/state.h), or the parameter itself. */
typedef int32_t muonrt_state_kind_t;
enum muonrt_state_kind {
  /** The parameter itself; used only in muonrt/health.h and muonrt/checkpoint_reader.h. */
  MUONRT_STATE_PARAM = -1,

  /** The momentum of Muon, or the first moment of AdamW. */
  MUONRT_STATE_MOMENTUM = 0,

  /** The second moment of AdamW. */
  MUONRT_STATE_VARIANCE = 1,

  /** f32 master weights. */
  MUONRT_STATE_MASTER = 2,

  /** uint16_t: the lower 16 bits of the f32 weights; see MUONRT_MASTER_REMAINDER. */
  MUONRT_STATE_REMAINDER = 3,

  /**
   * The second moments of NorMuon: one value per neuron (row or column), ordered by expert, then by
   * part. Matrices and parts with only one neuron have no second moment.
   */
  MUONRT_STATE_NORMUON = 4
};

/**
 * Options of muonrt_optimizer_create().
 *
 * Call muonrt_optimizer_options_init() before you set fields. If `device`, `clip_norm` or `seed`
 * differs between ranks, muonrt_optimizer_create() returns MUONRT_ERROR_MISMATCH.
 */
typedef struct muonrt_optimizer_options {
  /** Size of the struct in bytes; set by muonrt_optimizer_options_init(). */
  uint32_t struct_size;

  /**
   * Where the optimizer computes. On CUDA, all ranks need the same GPU model. On the host, muonrt
   * selects an instruction set, which must be the same on all ranks. Default: MUONRT_DEVICE_HOST.
   */
  muonrt_device_t device;

  /** CUDA device index of this rank's GPU. Must be 0 on the host. Default: 0. */
  int32_t device_index;

  /**
   * Number of compute threads of this rank on the host, 1 to 256. Results do not depend on it.
   * Default: 0, which makes muonrt divide the available processors (affinity mask and cgroup CPU
   * quota) among the ranks that share them. muonrt_counters_t reports the number in use.
   */
  int32_t threads;

  /**
   * Timeout in ms of every wait in steps, saves, loads and copies to this optimizer, 1 to
   * 31622400000 (366 days). Creation first uses the communicator's timeout. Default: 600000.
   */
  int64_t timeout_ms;

  /**
   * Maximum global norm of the gradients, 1e-30 to 1e30. muonrt multiplies the gradients by the
   * inverse loss scale before it computes the norm, and sums the squares without rounding errors.
   * Cannot be combined with partial gradients. Default: 0, which means no clipping.
   */
  double clip_norm;

  /**
   * Seed for the stochastic rounding of MUONRT_MASTER_STOCHASTIC and of bf16 momentum. The random
   * bits depend on the seed, step, parameter and element, but not on the mesh. Default: 0.
   */
  int64_t seed;

  /** Options for speed and memory. Default: NULL, which means the defaults. */
  const muonrt_tuning_options_t* tuning;

  /** Options for debugging. Default: NULL, which means the defaults. */
  const muonrt_debug_options_t* debug;
} muonrt_optimizer_options_t;

/**
 * Sets every field of `options` to its default.
 *
 * Call it through the macro muonrt_optimizer_options_init(), which passes the size.
 *
 * Threads: any.
 *
 * @param[out] options  The struct to fill; NULL is accepted.
 * @param[in]  size     Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_optimizer_options_init_sized(muonrt_optimizer_options_t* options,
                                                    uint32_t size);
#define muonrt_optimizer_options_init(options) \
  muonrt_optimizer_options_init_sized((options), sizeof(muonrt_optimizer_options_t))

/**
 * Creates an optimizer.
 *
 * The call plans the exchanges, compares the settings of all ranks, and allocates all memory. State
 * starts at zero, and master weights that muonrt allocates are copied from the parameters. On CUDA,
 * the call also runs a warm-up, which takes about as long as a step. The warm-up sends no messages,
 * reads no gradients and writes no parameters.
 *
 * Threads: one at a time per communicator. Collective: over the ranks of `comm`. Blocking.
 *
 * @par Memory
 * Until the optimizer is destroyed, it uses the buffers of the parameters: `data`, `master`, and
 * `grad` (until another gradient is bound). It also uses the functions and state of the options
 * `distributed` and `allocator`. Everything else, including `comm` and the arrays and layouts that
 * the structs point to, may be freed after the call.
 *
 * @par Streams
 * On CUDA, if a non-blocking stream writes parameters, synchronize it before the call. The call
 * itself waits for writes on the default stream and on blocking streams.
 *
 * @param[out] optimizer  The new optimizer; NULL on error. Destroy it with
 *                        muonrt_optimizer_destroy().
 * @param[in]  comm       The communicator. muonrt duplicates it and uses the duplicate.
 * @param[in]  options    The options of this rank; NULL for the defaults.
 * @param[in]  groups     `n_groups` groups, equal on all ranks. The struct_size of the first
 *                        element is the stride of the array.
 * @param[in]  n_groups   Number of groups, >= 1.
 * @param[in]  params     `n_params` parameters in the same order on all ranks, with this rank's
 *                        buffers. The struct_size of the first element is the stride of the array.
 * @param[in]  n_params   Number of parameters, 1 to 2^31 - 2.
 *
 * @return MUONRT_OK, or the same error on every rank; the message names rank, field and values.
 *   - MUONRT_ERROR_INVALID_ARGUMENT: a field or argument is out of range, or buffers overlap.
 *   - MUONRT_ERROR_NOT_SUPPORTED: settings cannot be combined; the communicator does not support
 *     the device; there is no CUDA device; or master weights cannot be copied, because the default
 *     stream waits for a stream that is being captured into a graph.
 *   - MUONRT_ERROR_MISMATCH: settings, groups, parameters, devices or versions of muonrt differ
 *     between ranks.
 *   - MUONRT_ERROR_CALLBACK: `assign` of muonrt_distributed_config_t has returned an error.
 *   - MUONRT_ERROR_OUT_OF_MEMORY, _DEVICE, _COMM, _TIMEOUT, _ABORTED.
 *
 * A NULL `comm` is reported only on the rank that passes it. After MUONRT_ERROR_COMM, _TIMEOUT or
 * _ABORTED, `comm` may have failed: create a new one. After other errors, you can retry.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_create(muonrt_optimizer_t** optimizer,
                                                   muonrt_comm_t* comm,
                                                   const muonrt_optimizer_options_t* options,
                                                   const muonrt_group_t* groups, int32_t n_groups,
                                                   const muonrt_param_t* params, int64_t n_params);

/**
 * Destroys an optimizer and frees its memory.
 *
 * The call waits, without a timeout, until all work that steps have enqueued is complete.
 *
 * Threads: one at a time per optimizer. Collective: no. Blocking.
 *
 * @param[in] optimizer  The optimizer; NULL is accepted.
 */
MUONRT_API void muonrt_optimizer_destroy(muonrt_optimizer_t* optimizer);

/**
 * Binds the gradient buffer of a parameter for all following steps.
 *
 * Unlike in muonrt_optimizer_create(), gradient buffers may overlap each other.
 *
 * Threads: one at a time per optimizer, between steps. Collective: no.
 *
 * @param[in] optimizer  The optimizer.
 * @param[in] param      Index of the parameter in `params` of muonrt_optimizer_create().
 * @param[in] grad       The local gradient; see `grad` of muonrt_param_t. NULL means that the
 *                       parameter has no gradient until another buffer is bound.
 *
 * @return MUONRT_OK, or MUONRT_ERROR_INVALID_ARGUMENT if `param` is out of range, or if `grad` is
 * misaligned, is not accessible to the device, or overlaps parameters, master weights or state.
 * On error, the previous buffer remains bound.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_set_grad(muonrt_optimizer_t* optimizer, int64_t param,
                                                     const void* grad);

/**
 * Binds the gradient buffers of all parameters; see muonrt_optimizer_set_grad().
 *
 * Threads: one at a time per optimizer, between steps. Collective: no.
 *
 * @param[in] optimizer  The optimizer.
 * @param[in] grads      `n` buffers, in the order of `params` of muonrt_optimizer_create().
 * @param[in] n          The number of parameters.
 *
 * @return MUONRT_OK, or MUONRT_ERROR_INVALID_ARGUMENT if a buffer is rejected, `grads` is NULL, or
 * `n` is not the number of parameters. After an error all previous buffers remain bound.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_set_grads(muonrt_optimizer_t* optimizer,
                                                      const void* const* grads, int64_t n);

/**
 * Binds the buffer of a parameter's local shard.
 *
 * If the values in the new buffer differ from those in the old buffer, call
 * muonrt_optimizer_reset_masters() afterwards. The next step checks that the values are finite and
 * agree with the master weights.
 *
 * Threads: one at a time per optimizer, between steps. Collective: no.
 *
 * @param[in] optimizer  The optimizer.
 * @param[in] param      Index of the parameter in `params` of muonrt_optimizer_create().
 * @param[in] data       The local shard; see `data` of muonrt_param_t.
 *
 * @return MUONRT_OK, or MUONRT_ERROR_INVALID_ARGUMENT if `param` is out of range, or if `data` is
 * misaligned, is not accessible to the device, is NULL although this rank holds elements, or
 * overlaps a gradient, another parameter or state. On error, the previous buffer remains bound.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_set_data(muonrt_optimizer_t* optimizer, int64_t param,
                                                     void* data);

/**
 * Resets master weights to the values of the parameters.
 *
 * Call it after you have written parameters, for example from a checkpoint. Master weights in
 * muonrt's memory become copies of the parameters, and remainders become 0. Master weights in the
 * caller's memory (MUONRT_MASTER_CALLER) do not change, so write them yourself. Moments and update
 * counts do not change either. `params` may include parameters without master weights.
 *
 * Threads: one at a time per optimizer, between steps. Collective: no, but every rank must list the
 * same parameters before the same step. If the lists differ, the next step returns
 * MUONRT_ERROR_MISMATCH, unless `replica_check` is MUONRT_REPLICA_CHECK_OFF. Blocking. The rules
 * for streams are the same as for muonrt_optimizer_create().
 *
 * @param[in] optimizer  The optimizer.
 * @param[in] params     Indices of `n` parameters; NULL for all parameters.
 * @param[in] n          Number of indices, >= 0; 0 if `params` is NULL.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: an index or `n` is out of range; nothing has changed;
 *   - MUONRT_ERROR_NOT_SUPPORTED: the default stream waits for a stream that is being captured;
 *   - MUONRT_ERROR_OUT_OF_MEMORY, _DEVICE;
 *   - MUONRT_ERROR_TIMEOUT: the work on the default stream did not finish within `timeout_ms`.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_reset_masters(muonrt_optimizer_t* optimizer,
                                                          const int64_t* params, int64_t n);

/**
 * Changes the settings of a group for all following steps.
 *
 * The call ignores `custom`, `gram_restarts` and `n_gram_restarts`, which cannot be changed.
 *
 * Threads: one at a time per optimizer, between steps. Collective: no, but every rank must make the
 * same change before the same step. If the settings differ, the next step returns
 * MUONRT_ERROR_MISMATCH.
 *
 * @param[in] optimizer  The optimizer.
 * @param[in] index      Index of the group in `groups` of muonrt_optimizer_create().
 * @param[in] group      The new settings. Fields that muonrt/group.h marks as "Fixed" must have the
 *                       values that muonrt_optimizer_create() received; `name` may be NULL.
 *
 * @return MUONRT_OK, or an error, after which nothing has changed:
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `index` or a field is out of range, or a fixed field differs;
 *   - MUONRT_ERROR_NOT_SUPPORTED: a fixed field has a new value that cannot be combined with the
 *     group's other settings.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_set_group(muonrt_optimizer_t* optimizer, int32_t index,
                                                      const muonrt_group_t* group);

/**
 * Runs one step, which updates every parameter or none.
 *
 * Threads: one at a time per optimizer. Collective: over the optimizer's ranks. Blocking.
 *
 * @param[out] report     What the step did; unchanged on error. May be NULL.
 * @param[in]  optimizer  The optimizer.
 * @param[in]  args       The arguments of the step.
 *
 * @return MUONRT_OK, MUONRT_SKIPPED or an error. Every rank returns MUONRT_SKIPPED if a gradient,
 * factor or logit is not finite, an update overflows, or `found_inf` is set. A skipped step changes
 * nothing and is not counted; muonrt_get_last_error() returns the reason.
 *
 * If one of the following errors occurs, every rank returns it, nothing has changed, and the
 * optimizer remains usable:
 *   - MUONRT_ERROR_INVALID_ARGUMENT: an argument is out of range; an active parameter has no
 *     gradient; a parameter, its master weights or its state is not finite; or the caller has
 *     written an active parameter but not its master weights, so the step would overwrite the new
 *     values. In the last case, call muonrt_optimizer_reset_masters() or restore the parameter.
 *   - MUONRT_ERROR_MISMATCH: arguments, settings or replicas differ between ranks.
 *   - MUONRT_ERROR_CALLBACK: `gather` or `redistribute` has returned an error.
 *   - MUONRT_ERROR_OUT_OF_MEMORY: a rank could not allocate memory for its arguments.
 *
 * After one of the following errors the optimizer is unusable:
 *   - MUONRT_ERROR_COMM, _TIMEOUT, _ABORTED, _DEVICE: no rank has committed the step.
 *   - MUONRT_ERROR_UNDECIDED: this rank has voted but does not know the result. It has not
 *     committed the step, but other ranks may have.
 *   - MUONRT_ERROR_TORN: parameters may be partly updated; load a checkpoint. With
 *     MUONRT_COMMIT_EAGER, a non-finite update also causes this error.
 *   - MUONRT_ERROR_NOT_SUPPORTED: `stream` of `args`, or a stream for which `stream` waits, is
 *     being captured into a graph.
 *   - MUONRT_ERROR_INVALID_STATE: an earlier error has made the optimizer unusable. Only this rank
 *     returns the error, without waiting for the other ranks.
 *
 * Until the first step is committed, every step checks that weights and state are finite. The check
 * is repeated after muonrt_optimizer_set_step(), muonrt_optimizer_set_update_count() and
 * muonrt_optimizer_load(). After muonrt_optimizer_set_data() and muonrt_optimizer_reset_masters()
 * it is repeated for the affected parameters. Every step also checks that active parameters are
 * bitwise equal to their rounded f32 master weights. For a bf16 parameter that no step has written
 * yet, the check accepts elements that were rounded in either direction.
 *
 * After a fault, ranks may return different statuses for the same step. If the fault occurs before
 * the vote, one rank may return MUONRT_ERROR_COMM, and another _TIMEOUT or _UNDECIDED. If it occurs
 * during the vote, one rank may return MUONRT_OK and the others _UNDECIDED.
 * muonrt_optimizer_recover() brings the surviving ranks to the same state.
 *
 * If the work on `stream` of `args` does not finish within `timeout_ms`, the step returns
 * MUONRT_ERROR_TIMEOUT, and the optimizer is unusable even if this work finishes later. Enqueued
 * work may still run, so keep all buffers until muonrt_optimizer_destroy() has returned.
 *
 * If the learning rate or the weight decay is too large, weights can overflow even if the gradients
 * are finite. Such a step is committed, but later steps return MUONRT_ERROR_INVALID_ARGUMENT until
 * all weights and state are finite again; the message names the parameter.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_step(muonrt_step_report_t* report,
                                                 muonrt_optimizer_t* optimizer,
                                                 const muonrt_step_args_t* args);

/**
 * Finds a parameter by its name.
 *
 * Threads: one at a time per optimizer. Collective: no.
 *
 * @param[out] index      Index of the parameter in `params` of muonrt_optimizer_create().
 * @param[in]  optimizer  The optimizer.
 * @param[in]  name       The parameter's name.
 *
 * @return MUONRT_OK, or MUONRT_ERROR_INVALID_ARGUMENT if no parameter has this name or a pointer is
 * NULL.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_find_param(int64_t* index,
                                                       const muonrt_optimizer_t* optimizer,
                                                       const char* name);

/**
 * Reads the number of committed steps.
 *
 * Threads: one at a time per optimizer. Collective: no.
 *
 * @param[out] step       Number of committed steps, 0 to 2^53.
 * @param[in]  optimizer  The optimizer.
 *
 * @return MUONRT_OK, or MUONRT_ERROR_INVALID_ARGUMENT if a pointer is NULL.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_get_step(int64_t* step,
                                                     const muonrt_optimizer_t* optimizer);

/**
 * Sets the number of committed steps, to resume training.
 *
 * The call also sets the update count of every parameter to `step` divided by its group's
 * `update_every`, rounded down. For parameters that were inactive in some steps, call
 * muonrt_optimizer_set_update_count() afterwards.
 *
 * Threads: one at a time per optimizer, between steps. Collective: no, but every rank must set the
 * same number before the same step. If the numbers differ, the next step returns
 * MUONRT_ERROR_MISMATCH.
 *
 * @param[in] optimizer  The optimizer.
 * @param[in] step       Number of committed steps, 0 to 2^53.
 *
 * @return MUONRT_OK, or MUONRT_ERROR_INVALID_ARGUMENT if `step` is out of range.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_set_step(muonrt_optimizer_t* optimizer, int64_t step);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_OPTIMIZER_H */
