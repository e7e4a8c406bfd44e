/* muonrt/group.h - the settings that parameters share. */
#ifndef MUONRT_GROUP_H
#define MUONRT_GROUP_H

#include "muonrt/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- settings ---- */
typedef int32_t muonrt_momentum_kind_t;
enum muonrt_momentum_kind {
  MUONRT_MOMENTUM_EMA = 0,
  MUONRT_MOMENTUM_HEAVY_BALL = 1,
  MUONRT_MOMENTUM_EMA_CORRECTED = 2 /* as EMA; step t (from 1) divides the momentum by
                                       1 - momentum^t. With nesterov it divides the gradient by
                                       this, and the momentum by 1 - momentum^(t + 1). As in
                                       Optax t counts the optimizer's steps, not the updates of
                                       the parameter, and momentum is that of step t */
};
typedef int32_t muonrt_coefficients_t;
enum muonrt_coefficients {
  MUONRT_COEFFICIENTS_POLAR_EXPRESS = 0, /* generated from steps, lower_bound, cushion, safety */
  MUONRT_COEFFICIENTS_KELLER_JORDAN = 1, /* 3.4445, -4.7750, 2.0315 in every step */
  MUONRT_COEFFICIENTS_YOU_JIACHENG = 2,  /* five triples; steps must be 5 */
  MUONRT_COEFFICIENTS_CANS = 3,          /* generated from steps, lower_bound; no cushion */
  MUONRT_COEFFICIENTS_DEEPSEEK_V4 = 4,   /* eight of Keller Jordan, then 2, -1.5, 0.5; steps >= 9 */
  MUONRT_COEFFICIENTS_CUBIC = 5,         /* five pairs, no quintic term; steps must be 5 */
  MUONRT_COEFFICIENTS_CLASSICAL = 6,     /* 15/8, -10/8, 3/8 in every step */
  MUONRT_COEFFICIENTS_AOL = 7,           /* four triples, made for row_scaling; steps must be 4 */
  MUONRT_COEFFICIENTS_CUSTOM = 100       /* `custom`, steps x (a, b, c) */
};
/* Rows are outputs, columns inputs, also where the parameter is `transposed`. */
typedef int32_t muonrt_scale_rule_t;
enum muonrt_scale_rule {
  MUONRT_SCALE_MATCH_RMS = 0, /* 0.2 sqrt(max(rows, cols)) */
  MUONRT_SCALE_ORIGINAL = 1,  /* sqrt(max(1, rows / cols)) */
  MUONRT_SCALE_RATIO = 2,     /* sqrt(rows / cols) */
  MUONRT_SCALE_MAX_DIM = 3,   /* sqrt(max(rows, cols)) */
  MUONRT_SCALE_NONE = 4       /* 1 */
};
typedef int32_t muonrt_form_t;
enum muonrt_form { MUONRT_FORM_AUTO = 0, MUONRT_FORM_STANDARD = 1, MUONRT_FORM_GRAM = 2 };
/* How safety against rounding above 1 is applied. */
typedef int32_t muonrt_safety_mode_t;
enum muonrt_safety_mode {
  MUONRT_SAFETY_AUTO = 0,  /* the list's published way: INNER for Polar Express, else NONE. In
                              bf16 and f16 INNER for CANS, and in the Gram form in f16 ALL for
                              both, with 1.05 where `safety` is 0. The other modes always take the
                              list's own safety there. */
  MUONRT_SAFETY_INNER = 1, /* generated lists: every polynomial but the last divided while the
                              list is made, and the input divided by safety x norm */
  MUONRT_SAFETY_ALL = 2,   /* the finished list divided; the input by its norm alone */
  MUONRT_SAFETY_NONE = 3   /* the list as it is; the input divided by safety x norm. Refused in
                              bf16 and f16 where roundings between the steps would grow: of
                              generated lists from 3 (bf16) or 4 (f16) steps on */
};
/* What the input of Newton-Schulz is divided by. */
typedef int32_t muonrt_normalize_t;
enum muonrt_normalize {
  MUONRT_NORMALIZE_PRESCALED = 0, /* safety x norm, free of over- and underflow, no eps */
  MUONRT_NORMALIZE_ADD_EPS = 1,   /* safety x norm + normalize_eps */
  MUONRT_NORMALIZE_MAX_EPS = 2    /* max(safety x norm, normalize_eps) */
};
typedef int32_t muonrt_row_scaling_t;
enum muonrt_row_scaling {
  MUONRT_ROW_SCALING_NONE = 0,
  MUONRT_ROW_SCALING_AOL = 1,
  MUONRT_ROW_SCALING_EQUILIBRATE = 2 /* the rows of outputs are scaled to one norm before the
                                        iteration (MuonEq, arXiv 2603.28254) */
};
typedef int32_t muonrt_weight_decay_kind_t;
enum muonrt_weight_decay_kind {
  MUONRT_WEIGHT_DECAY_DECOUPLED = 0,   /* W -= rate weight_decay W, rate = lr x all lr_factors */
  MUONRT_WEIGHT_DECAY_INDEPENDENT = 1, /* W -= weight_decay W */
  MUONRT_WEIGHT_DECAY_LR_SQUARED = 2,  /* W -= rate^2 weight_decay W */
  MUONRT_WEIGHT_DECAY_CAUTIOUS = 3     /* decoupled, where update x weight >= 0 */
};
typedef int32_t muonrt_adam_form_t;
enum muonrt_adam_form {
  MUONRT_ADAM_TORCH = 0,   /* eps outside the bias-corrected root */
  MUONRT_ADAM_FOLDED = 1,  /* eps beside the uncorrected root; the corrections in the rate */
  MUONRT_ADAM_NESTEROV = 2 /* as TORCH, with beta1 m / (1 - beta1^(t + 1)) +
                              (1 - beta1) g / (1 - beta1^t) instead of m / (1 - beta1^t) */
};

/* Settings that parameters share. Zero is zero in every number; NaN is refused, and so is what is
 * beyond 1e30 where no other bound stands. Equal on every rank.
 * "fixed": set at creation; the others may be changed between steps with
 * muonrt_optimizer_set_group. */
typedef struct muonrt_group {
  uint32_t struct_size;
  muonrt_role_t role;  /* MUONRT_ROLE_MUON or MUONRT_ROLE_ADAMW; fixed */
  const char* name;    /* for messages and the printed plan; fixed; may be NULL */
  double lr_factor;    /* multiplies the step's learning rate; 1; >= 0 */
  double weight_decay; /* Muon 0.1, AdamW 0.01; >= 0; see weight_decay_kind */
  /* Muon */
  double momentum; /* 0.95; 0 <= momentum < 1, also once it is rounded to f32 */
  muonrt_momentum_kind_t momentum_kind; /* EMA; fixed */
  int32_t nesterov;                     /* 1 */
  muonrt_coefficients_t coefficients;   /* POLAR_EXPRESS; fixed */
  int32_t steps;      /* Newton-Schulz steps; 5; 1 .. 32, or 0: as the list was published; fixed */
  double lower_bound; /* Polar Express, CANS: 1e-3; 1e-12 <= lower_bound < 1; fixed */
  double cushion;     /* Polar Express: 0.02; 0 <= cushion < 1; fixed */
  double safety;      /* 1 .. 2, or 0: the list's own (Polar Express, CANS, cubic 1.02; others 1);
                         0; fixed */
  muonrt_safety_mode_t safety_mode; /* MUONRT_SAFETY_AUTO; fixed */
  muonrt_normalize_t normalize;     /* MUONRT_NORMALIZE_PRESCALED; fixed */
  const double* custom; /* CUSTOM: steps x 3 numbers, read at creation alone; else NULL (any other
                           is refused); fixed.
                           Refused, as any list: numbers that are not finite; one that takes a
                           singular value within (0, 1] beyond 4 after any step; one that takes
                           any up to 1 + 2^-7 (f32: 1 + 2^-20) below 0, or beyond 1.5 and 5/4 of the
                           most within (0, 1] */
  muonrt_scale_rule_t scale_rule; /* MATCH_RMS; fixed */
  muonrt_form_t form;             /* AUTO: by shape alone; fixed */
  double scale_factor;            /* multiplies the rule's value; 1; >= 0; fixed */
  /* AdamW */
  double beta1, beta2, adamw_eps; /* 0.9, 0.95, 1e-8; ranges of beta1 and beta2: as momentum's */
  /* Muon */
  double normalize_eps;           /* NORMALIZE_ADD_EPS, _MAX_EPS: 1e-7; >= 0; fixed */
  const int32_t* gram_restarts;   /* Gram form: n_gram_restarts steps, counted from 0 and ascending,
                                before   which X is rebuilt; read at creation alone; NULL: searched for
                                the   list and dtype, so that matrices of at least 512 rows have no
                                larger error than in the standard form in bf16; refused with
                                FORM_STANDARD; fixed */
  int32_t n_gram_restarts;        /* 0 .. 31 */
  muonrt_dtype_t iteration_dtype; /* of this group; 0: the optimizer's; fixed */
  muonrt_row_scaling_t row_scaling; /* AOL: rows of the normalized matrix divided by the root of
                          their absolute Gram sums, as Turbo-Muon does (a sum below 1e-7 counts as
                          1e-7; in f16 also below rows x 2^-27, as that), then by safety but
                          in mode ALL; NONE; fixed */
  int32_t block_period;   /* P, 1 .. 10^9: steps 0, P, 2P, ... take the whole matrix, those
                             between take its blocks, each a matrix of its own; equal in all groups
                             with P > 1; 1: always whole; fixed */
  int32_t block_rows;     /* blocks of the global matrix (of each expert's, of each part), in
                             ceil chunks, so that a small matrix may have fewer; 1; */
  int32_t block_cols;     /* 1 .. 1024 each; fixed */
  double block_lr_factor; /* multiplies the rate of updates, not of decay, on block steps; 1;
                               >= 0 */
  /* both */
  muonrt_weight_decay_kind_t weight_decay_kind; /* DECOUPLED; fixed */
  muonrt_adam_form_t adam_form;                 /* AdamW: TORCH; fixed */
  int32_t update_every; /* AdamW: acts at every so many-th committed step, on the gradient of
                           that step, without decay in between; 1; 1 .. 2^30; fixed. Gradients of
                           the other steps may be NULL; else clipping alone reads them: one
                           that is not finite skips the step, and clip_norm counts them. */
  muonrt_dtype_t momentum_dtype; /* Muon: MUONRT_DTYPE_F32, or _BF16: rounded at random when it is
                                    stored, so that its mean is exact (options: seed); fixed */
  muonrt_normuon_axis_t normuon_axis; /* Muon: OFF; axis of NorMuon; fixed. A matrix with one line
                      only is left as it is. With block_period > 1: NOT_SUPPORTED. */
  int32_t renormalize;  /* Muon: 0; 1: after the iteration each matrix is scaled to the Frobenius
                           norm sqrt(min(rows, cols)); fixed (Muon+, arXiv 2602.21545) */
  double normuon_beta2; /* 0.95; range: as momentum's */
} muonrt_group_t;

/* Sets every field to its default; see muonrt/base.h. `role` is MUONRT_ROLE_MUON or _ADAMW. */
MUONRT_API void muonrt_group_init_sized(muonrt_group_t* group, muonrt_role_t role, uint32_t size);
#define muonrt_group_init(group, role) \
  muonrt_group_init_sized((group), (role), sizeof(muonrt_group_t))

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_GROUP_H */
