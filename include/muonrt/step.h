/**
 * @file muonrt/step.h
 * The arguments and the report of muonrt_optimizer_step().
 *
 * muonrt/optimizer.h includes this header.
 */
#ifndef MUONRT_STEP_H
#define MUONRT_STEP_H

#include "muonrt/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Arguments of one step.
 *
 * Call muonrt_step_args_init() before you set fields. `lr` (or `group_lrs`), `grad_scale_inv` and
 * `inactive_params` must be equal on all ranks. The product of all factors that are applied to the
 * gradients (`grad_scale_inv`, `device_grad_scale_inv`, the clipping factor and `grad_multiplier`)
 * must also be equal on all ranks. If any of these values differs, the step returns
 * MUONRT_ERROR_MISMATCH.
 *
 * The fields of type `const float*` point to f32 values, aligned to 4 bytes, in memory that the
 * optimizer's device can access. The step reads these values while it is running, so do not change
 * them until muonrt_optimizer_step() has returned. For muonrt_optimizer_step_async(), see
 * muonrt/step_async.h.
 */
typedef struct muonrt_step_args {
  /** Size of the struct in bytes; set by muonrt_step_args_init(). */
  uint32_t struct_size;

  /** Reserved; 0. */
  int32_t reserved;

  /**
   * Learning rate of all groups: finite, >= 0. The product of `lr`, the `lr_factor` of a group and
   * the `lr_factor` of each of its parameters must be representable in f32. A Muon group whose
   * `scale_rule` is not MUONRT_SCALE_MATCH_RMS needs a different learning rate than AdamW. `lr` is
   * therefore rejected if such a group and an AdamW group have the same `lr_factor` and both
   * contain parameters; set `group_lrs` instead. Default: NaN, which is rejected.
   */
  double lr;

  /**
   * Factor by which every gradient is multiplied: usually the inverse of the loss scale, > 0 and
   * representable in f32. Default: 1.
   */
  double grad_scale_inv;

  /**
   * Indices of the parameters that are inactive in this step. Their values and state do not change,
   * and their gradients are not read. The ranks exchange zeros for them, unless `omit_inactive` of
   * the tuning options is 1. Default: NULL.
   */
  const int64_t* inactive_params;

  /** Number of elements in `inactive_params`, 0 to the number of parameters. Default: 0. */
  int64_t n_inactive_params;

  /**
   * Points to one factor, by which every gradient is multiplied in addition to `grad_scale_inv`.
   * Default: NULL, which means 1.
   */
  const float* device_grad_scale_inv;

  /**
   * Points to one factor, by which every gradient is multiplied after it has been clipped to
   * `clip_norm`. Use this factor, for example, to apply your own clipping. Default: NULL, which
   * means 1.
   */
  const float* grad_multiplier;

  /**
   * Points to one value. If the value differs from 0 on at least one rank, all ranks skip the step.
   * Default: NULL, which means 0.
   */
  const float* found_inf;

  /**
   * For QK-clip, the largest attention logit of each query head on this rank, ordered by layer and,
   * within a layer, by head. Pass -inf for a head that this rank does not compute. The step uses
   * the maximum over all ranks. If a value is +inf or NaN, the step is skipped. Default: NULL,
   * which means -inf for every head.
   */
  const float* qk_logits;

  /**
   * Number of elements in `qk_logits`: the total number of query heads in all layers with QK-clip
   * (see muonrt_optimizer_get_qk_layers()). Not read if `qk_logits` is NULL. Default: 0.
   */
  int64_t n_qk_logits;

  /**
   * On CUDA, the cudaStream_t on which the gradients are written. The step starts after all work
   * that was enqueued on this stream before the call. Must be NULL on the host. Default: NULL,
   * which means the default stream.
   */
  void* stream;

  /**
   * One learning rate for each group, in the order of the groups and with the same range as `lr`.
   * If this field is set, `lr` is not read. Default: NULL, which means `lr` for every group.
   */
  const double* group_lrs;

  /** Number of elements in `group_lrs`: the number of groups; 0 if it is NULL. Default: 0. */
  int32_t n_group_lrs;

  /** Reserved; 0. */
  int32_t reserved_2;
} muonrt_step_args_t;

/**
 * The report of a step.
 *
 * Times are in seconds. The times and `bytes_sent` are those of this rank only.
 */
typedef struct muonrt_step_report {
  /** Size of the struct in bytes; set by muonrt_step_report_init(). */
  uint32_t struct_size;

  /** 1: the step was skipped, so nothing has changed. */
  int32_t skipped;

  /** Number of committed steps, including this one if it was committed. */
  int64_t step;

  /**
   * Number of matrices that all ranks together have orthogonalized. In a committed step it equals
   * `planned`.
   */
  int64_t orthogonalized;

  /** Number of matrices that the ranks orthogonalize in this step according to the plan. */
  int64_t planned;

  /**
   * Number of orthogonalized matrices whose input was zero, including matrices of inactive
   * parameters; 0 if the step was skipped.
   */
  int64_t zero_matrices;

  /**
   * If the step was skipped, the lowest rank with a non-finite gradient. If all gradients are
   * finite, the lowest rank that found another cause: `found_inf`, a non-finite factor or logit, or
   * an update that overflowed. -1 if the step was not skipped.
   */
  int32_t nonfinite_rank;

  /**
   * 1: this step collected statistics; see muonrt_optimizer_get_health(). If collecting them fails,
   * the step keeps its status, but the optimizer becomes unusable: the next step returns
   * MUONRT_ERROR_INVALID_STATE with a message that contains the error.
   */
  int32_t has_health;

  /**
   * Lowest index among the parameters in which the rank `nonfinite_rank` found the cause. -1 if the
   * step was not skipped, or if the cause is not in a parameter.
   */
  int64_t nonfinite_param;

  /** Bytes sent to other ranks. */
  int64_t bytes_sent;

  /** Time of the whole call. */
  double seconds;

  /** Time spent packing, unpacking and committing local data. */
  double local_seconds;

  /** Time spent on normalization and on the matrix products of Newton-Schulz. */
  double gemm_seconds;

  /** Total time of all exchanges. */
  double exchange_seconds;

  /** `seconds` minus `local_seconds` and `gemm_seconds`, but not less than 0. */
  double exposed_seconds;

  /**
   * Global norm of the gradients before clipping, but after multiplication by `grad_scale_inv` and
   * `device_grad_scale_inv`. 0 if `clip_norm` is 0 or the step was skipped.
   */
  double grad_norm;

  /** Number of heads that QK-clip has clipped; see muonrt_optimizer_get_clipped_heads(). */
  int64_t clipped_heads;

  /**
   * Time until all work of the step was enqueued. After that time, muonrt_optimizer_step() only
   * waits. In a large step, this time may include waits for `stream`.
   */
  double enqueue_seconds;

  /**
   * 1: the step was skipped because the matrix to be orthogonalized overflows `transport_dtype`,
   * although the gradient and the momentum of `nonfinite_param` are finite. Scale the gradients
   * down, or set `transport_dtype` of muonrt_tuning_options_t to MUONRT_DTYPE_F32.
   */
  int32_t transport_overflow;

  /** Reserved; 0. */
  int32_t reserved;

  /**
   * Index of the Muon parameter with the largest update relative to its weights. It is reported
   * only in the first step, and only if the RMS of the update is above 5% of the RMS of the
   * weights; otherwise the value is -1. If a parameter is reported, the learning rate was probably
   * chosen for a different `scale_rule`. The value is the same on all ranks and does not depend on
   * the mesh.
   *
   * muonrt computes the RMS of the update from the learning rate, the factors that are applied to
   * it, and the scale, as if the gradient were a matrix of full rank. It ignores parameters whose
   * weights or gradient are zero.
   */
  int64_t large_update_param;

  /**
   * RMS of the update of `large_update_param`, divided by the RMS of its weights before the step; 0
   * if `large_update_param` is -1.
   */
  double large_update_ratio;
} muonrt_step_report_t;

/**
 * Sets every field of `args` to its default.
 *
 * Call it through the macro muonrt_step_args_init(), which passes the size.
 *
 * Threads: any.
 *
 * @param[out] args  The struct to fill; NULL is accepted.
 * @param[in]  size  Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_step_args_init_sized(muonrt_step_args_t* args, uint32_t size);
#define muonrt_step_args_init(args) muonrt_step_args_init_sized((args), sizeof(muonrt_step_args_t))

/**
 * Sets every field of `report` to its default.
 *
 * Call it through the macro muonrt_step_report_init(), which passes the size.
 *
 * Threads: any.
 *
 * @param[out] report  The struct to fill; NULL is accepted.
 * @param[in]  size    Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_step_report_init_sized(muonrt_step_report_t* report, uint32_t size);
#define muonrt_step_report_init(report) \
  muonrt_step_report_init_sized((report), sizeof(muonrt_step_report_t))

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_STEP_H */
