/* muonrt/health.h - statistics of single steps: are updates orthogonal, are replicas equal? */
#ifndef MUONRT_HEALTH_H
#define MUONRT_HEALTH_H

#include "muonrt/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* With `health_every` = k in the options, the step that would be the k-th, 2k-th, ... committed one
 * measures, skipped or not. It costs a pass over weights, gradients and what replicas hold, some
 * products with vectors for each matrix, one reduction over all ranks, and waits of the host. Other
 * steps cost nothing, and no step changes a bit of what is computed. All numbers are the same on
 * every rank, for every mesh, number of ranks and threads (sums are exact); with partial gradients
 * `nonfinite` counts each addend. */

/* What replicas hold, beside MUONRT_STATE_MOMENTUM, _VARIANCE, _MASTER, _REMAINDER. */
enum { MUONRT_STATE_PARAM = -1 /* the parameter itself */ };

/* The last step that measured. */
typedef struct muonrt_health {
  uint32_t struct_size;
  int32_t skipped;  /* 1: that step was voted down; weights are as before */
  int64_t step;     /* committed steps when it had ended; -1: none has measured yet */
  int64_t matrices; /* that step took; experts, parts and blocks each count */
  /* Bits of data, master weights, remainders and moments of all replicas, compared by a hash: the
     first parameter that differs, or -1; the lowest rank that holds something else than the first
     replica of its shard; that replica's rank; what differs first. Which of the two is damaged
     cannot be told; an owner's error, which all replicas receive alike, is not seen. */
  int64_t replica_param;
  int32_t replica_rank; /* -1 where all are equal */
  int32_t replica_reference;
  int32_t replica_kind; /* MUONRT_STATE_PARAM or a muonrt_state_kind_t */
  int32_t reserved;
} muonrt_health_t;

/* One matrix. NaN stands for what there is nothing to tell of. */
typedef struct muonrt_matrix_health {
  uint32_t struct_size;
  int32_t updated; /* 0: the step was skipped, or its parameter sat out: no update was made */
  int64_t param;
  int64_t index; /* among its parameter's matrices: expert by expert, part by part */
  /* As stored. */
  int64_t rows, cols;
  double update_rms; /* root mean square of what the group's rate (the step's lr x the group's
                        lr_factor) multiplies: scale and the lr_factors of parameter and part are in
                        it */
  double weight_rms; /* of the weights in f32, after the step; NaN where one is not finite */
  /* Of the orthogonalized matrix, before NorMuon: ends of its singular values, estimated from
     inside by 48 steps of Lanczos's method, and the larger of 1 - sigma_min, sigma_max - 1. How
     small it is depends on the coefficients: Keller Jordan's leave 0.3, zero directions 1. */
  double sigma_min, sigma_max;
  double deviation;
  double largest_q;  /* largest |element| of a Q of the Gram form; NaN: no Q was formed */
  int64_t nonfinite; /* elements of the gradient that are infinite or NaN */
} muonrt_matrix_health_t;

/* Each sets every field to its default; see muonrt/base.h. */
MUONRT_API void muonrt_health_init_sized(muonrt_health_t* health, uint32_t size);
#define muonrt_health_init(health) muonrt_health_init_sized((health), sizeof(muonrt_health_t))
MUONRT_API void muonrt_matrix_health_init_sized(muonrt_matrix_health_t* matrix, uint32_t size);
#define muonrt_matrix_health_init(matrix) \
  muonrt_matrix_health_init_sized((matrix), sizeof(muonrt_matrix_health_t))

/* *health <- the summary, and matrices[0 .. capacity) <- the first of its matrices, by parameter
 * and index; the first element's struct_size is the stride of all. `matrices` may be NULL where
 * capacity is 0. Errors: INVALID_ARGUMENT; INVALID_STATE where health_every is 0. */
MUONRT_API muonrt_status_t muonrt_optimizer_get_health(const muonrt_optimizer_t* optimizer,
                                                       muonrt_health_t* health,
                                                       muonrt_matrix_health_t* matrices,
                                                       int64_t capacity);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_HEALTH_H */
