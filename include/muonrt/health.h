/**
 * @file muonrt/health.h
 * Statistics of individual steps, which show how close to orthogonal the updates are, and whether
 * replicas are equal.
 *
 * If `health_every` of muonrt_debug_options_t is k > 0, muonrt collects statistics in the steps k,
 * 2k, 3k and so on. Skipped steps are not counted: if step k is skipped, the next step is step k
 * again, and both collect statistics. A step that collects statistics reads weights, gradients and
 * all replicated data once more, multiplies each matrix by some vectors, and performs one more
 * reduction over all ranks. Other steps have no additional cost, and the results of training do not
 * change.
 *
 * All statistics are equal on every rank. Except for `nonfinite`, which counts the elements of
 * every partial gradient, the statistics do not depend on the mesh, the placements, or the number
 * of ranks or threads.
 */
#ifndef MUONRT_HEALTH_H
#define MUONRT_HEALTH_H

#include "muonrt/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Summary of the last step that collected statistics.
 *
 * muonrt compares hashes of all replicas of parameters, master weights, remainders and moments. The
 * `replica_` fields describe the first parameter whose replicas differ. The comparison cannot show
 * whether `replica_rank` or `replica_reference` has the wrong data. It also cannot detect that the
 * owner of a matrix has sent the same wrong update to all replicas.
 */
typedef struct muonrt_health {
  /** Size of the struct in bytes; set by muonrt_health_init(). */
  uint32_t struct_size;

  /** 1: the step was skipped, so the statistics of weights describe the weights before the step. */
  int32_t skipped;

  /**
   * Number of committed steps at the end of the step that collected the statistics; -1 if no step
   * has collected statistics yet.
   */
  int64_t step;

  /** Number of matrices in the step. Each expert, part or block counts as one matrix. */
  int64_t matrices;

  /** Lowest index among the parameters whose replicas differ; -1 if all replicas are equal. */
  int64_t replica_param;

  /**
   * Lowest rank whose data differs from the data of rank `replica_reference`; -1 if all replicas
   * are equal.
   */
  int32_t replica_rank;

  /** Rank that holds the first replica of `replica_rank`'s shard; -1 if all replicas are equal. */
  int32_t replica_reference;

  /**
   * Kind of the data that differs: MUONRT_STATE_PARAM, _MASTER, _REMAINDER, _MOMENTUM or _VARIANCE.
   */
  muonrt_state_kind_t replica_kind;

  /** Reserved; 0. */
  int32_t reserved;
} muonrt_health_t;

/**
 * Statistics of one matrix.
 *
 * A floating-point field that has no value is NaN. For example, `largest_q` is NaN if the standard
 * form was used, and `update_rms` is NaN if `updated` is 0.
 */
typedef struct muonrt_matrix_health {
  /** Size of the struct in bytes; set by muonrt_matrix_health_init(). */
  uint32_t struct_size;

  /** 1: the step has updated the matrix. 0: the step was skipped, or the parameter was inactive. */
  int32_t updated;

  /** Index of the parameter in the array passed to muonrt_optimizer_create(). */
  int64_t param;

  /** Index of the matrix in its parameter. Matrices are ordered by expert, then by part. */
  int64_t index;

  /** Numbers of rows and columns of the matrix as it is stored. */
  int64_t rows, cols;

  /**
   * Root mean square of the update. It includes the scale of the update and the lr_factors of the
   * parameter and the part, but neither the step's learning rate nor the group's lr_factor.
   */
  double update_rms;

  /** Root mean square of the f32 weights after the step; NaN if a weight is not finite. */
  double weight_rms;

  /**
   * Smallest and largest singular value of the orthogonalized matrix before NorMuon, estimated with
   * 48 Lanczos steps. Except for rounding errors, both estimates are between the true smallest and
   * the true largest singular value.
   */
  double sigma_min, sigma_max;

  /**
   * The larger of 1 - sigma_min and sigma_max - 1. Typical values depend on the coefficients; for
   * example, Keller Jordan's coefficients give about 0.3. If the input of the orthogonalization has
   * a singular value of 0, the deviation is about 1, because every step maps 0 to 0.
   */
  double deviation;

  /**
   * Largest absolute value in the matrix Q, by which the Gram form multiplies its input. NaN in the
   * standard form, which does not compute Q.
   */
  double largest_q;

  /** Number of infinite or NaN elements in the gradient. */
  int64_t nonfinite;
} muonrt_matrix_health_t;

/**
 * Sets every field of `health` to its default.
 *
 * Call it through the macro muonrt_health_init(), which passes the size.
 *
 * Threads: any.
 *
 * @param[out] health  The struct to fill; NULL is accepted.
 * @param[in]  size    Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_health_init_sized(muonrt_health_t* health, uint32_t size);
#define muonrt_health_init(health) muonrt_health_init_sized((health), sizeof(muonrt_health_t))

/**
 * Sets every field of `matrix` to its default.
 *
 * Call it through the macro muonrt_matrix_health_init(), which passes the size.
 *
 * Threads: any.
 *
 * @param[out] matrix  The struct to fill; NULL is accepted.
 * @param[in]  size    Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_matrix_health_init_sized(muonrt_matrix_health_t* matrix, uint32_t size);
#define muonrt_matrix_health_init(matrix) \
  muonrt_matrix_health_init_sized((matrix), sizeof(muonrt_matrix_health_t))

/**
 * Gets the statistics of the last step that collected statistics.
 *
 * To learn the number of matrices, call the function with capacity 0 first and read
 * `health->matrices`.
 *
 * Threads: one at a time per optimizer. Collective: no.
 *
 * @param[out] health     The summary. Call muonrt_health_init() before you pass it.
 * @param[out] matrices   Array of `capacity` elements, which is filled from the start in the order
 *                        of `param` and `index`. Initialize the first element with
 *                        muonrt_matrix_health_init(). Its struct_size is the size of every element.
 *                        May be NULL if `capacity` is 0.
 * @param[in]  capacity   Number of elements in `matrices`, >= 0.
 * @param[in]  optimizer  The optimizer.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `capacity` is out of range, a required pointer is NULL, or a
 *     struct is not initialized;
 *   - MUONRT_ERROR_INVALID_STATE: `health_every` is 0.
 */
MUONRT_API muonrt_status_t muonrt_optimizer_get_health(muonrt_health_t* health,
                                                       muonrt_matrix_health_t* matrices,
                                                       int64_t capacity,
                                                       const muonrt_optimizer_t* optimizer);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_HEALTH_H */
