/**
 * @file muonrt/group.h
 * The settings that the parameters of a group share.
 */
#ifndef MUONRT_GROUP_H
#define MUONRT_GROUP_H

#include "muonrt/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * How Muon accumulates gradients g in its momentum m, with the coefficient mu = `momentum`.
 *
 * Muon orthogonalizes m. With `nesterov` it orthogonalizes (1 - mu) g + mu m instead, and g + mu m
 * for MUONRT_MOMENTUM_HEAVY_BALL.
 */
typedef int32_t muonrt_momentum_kind_t;
enum muonrt_momentum_kind {
  /** m = mu m + (1 - mu) g. */
  MUONRT_MOMENTUM_EMA = 0,

  /** m = mu m + g. */
  MUONRT_MOMENTUM_HEAVY_BALL = 1,

  /**
   * Like MUONRT_MOMENTUM_EMA, but with the bias correction of Optax: step t = 1, 2, ...
   * orthogonalizes m / (1 - mu^t), or with `nesterov` (1 - mu) g / (1 - mu^t) + mu m / (1 - mu^(t +
   * 1)). t counts the committed steps of the optimizer, not the updates of the parameter.
   */
  MUONRT_MOMENTUM_EMA_CORRECTED = 2
};

/** Coefficients (a, b, c) of Newton-Schulz, which maps singular values x to a x + b x^3 + c x^5. */
typedef int32_t muonrt_coefficients_t;
enum muonrt_coefficients {
  /** Polar Express, generated from `steps`, `lower_bound`, `cushion` and `safety`. */
  MUONRT_COEFFICIENTS_POLAR_EXPRESS = 0,

  /** Keller Jordan: (3.4445, -4.7750, 2.0315) in every step. */
  MUONRT_COEFFICIENTS_KELLER_JORDAN = 1,

  /** You Jiacheng: five triples; `steps` must be 5. */
  MUONRT_COEFFICIENTS_YOU_JIACHENG = 2,

  /** CANS, generated from `steps` and `lower_bound`; `cushion` is not used. */
  MUONRT_COEFFICIENTS_CANS = 3,

  /** DeepSeek-V4: eight steps of Keller Jordan, then (2, -1.5, 0.5); `steps` >= 9. */
  MUONRT_COEFFICIENTS_DEEPSEEK_V4 = 4,

  /** Cubic: five pairs with c = 0; `steps` must be 5. */
  MUONRT_COEFFICIENTS_CUBIC = 5,

  /** Classical: (15/8, -10/8, 3/8) in every step. */
  MUONRT_COEFFICIENTS_CLASSICAL = 6,

  /** Turbo-Muon: four triples for MUONRT_ROW_SCALING_AOL; `steps` must be 4. */
  MUONRT_COEFFICIENTS_AOL = 7,

  /** The list in `custom`. */
  MUONRT_COEFFICIENTS_CUSTOM = 100
};

/**
 * How an orthogonalized update is scaled. The factor depends on the shape of the matrix.
 *
 * Here and in all other settings, rows are outputs and columns are inputs, even if the parameter is
 * `transposed`.
 */
typedef int32_t muonrt_scale_rule_t;
enum muonrt_scale_rule {
  /**
   * 0.2 sqrt(max(rows, cols)): updates have about AdamW's RMS, so use AdamW's learning rates.
   */
  MUONRT_SCALE_MATCH_RMS = 0,

  /** sqrt(max(1, rows / cols)). */
  MUONRT_SCALE_ORIGINAL = 1,

  /** sqrt(rows / cols). */
  MUONRT_SCALE_RATIO = 2,

  /** sqrt(max(rows, cols)). */
  MUONRT_SCALE_MAX_DIM = 3,

  /** 1. */
  MUONRT_SCALE_NONE = 4
};

/** Form of the Newton-Schulz iteration. */
typedef int32_t muonrt_form_t;
enum muonrt_form {
  /**
   * MUONRT_FORM_GRAM if the short side is at least 512, the long side at least 1.5 times the short
   * side, and the Gram form is safe and iterates in no wider dtype; otherwise MUONRT_FORM_STANDARD.
   */
  MUONRT_FORM_AUTO = 0,

  /** The iteration runs on the matrix. */
  MUONRT_FORM_STANDARD = 1,

  /** The iteration runs on the Gram matrix of the short side. */
  MUONRT_FORM_GRAM = 2
};

/**
 * How `safety` is applied. Rounding can move singular values above 1, and `safety` keeps them in
 * the range for which the coefficients are made.
 */
typedef int32_t muonrt_safety_mode_t;
enum muonrt_safety_mode {
  /**
   * MUONRT_SAFETY_INNER for Polar Express, and for CANS in bf16 and f16; otherwise
   * MUONRT_SAFETY_NONE. In the Gram form in f16, Polar Express and CANS use MUONRT_SAFETY_ALL, with
   * the factor 1.05 if `safety` is 0.
   */
  MUONRT_SAFETY_AUTO = 0,

  /**
   * For Polar Express and CANS only: every polynomial p(x) except the last is replaced with
   * p(x / safety) while the list is generated. The input is divided by safety x norm.
   */
  MUONRT_SAFETY_INNER = 1,

  /** Every polynomial p(x) is replaced with p(x / safety). The input is divided by its norm. */
  MUONRT_SAFETY_ALL = 2,

  /**
   * The list is unchanged, and the input is divided by safety x norm. In bf16 and f16, lists that
   * would amplify the rounding errors of earlier steps are rejected.
   */
  MUONRT_SAFETY_NONE = 3
};

/** The divisor of the Newton-Schulz input; norm is the Frobenius norm of the input. */
typedef int32_t muonrt_normalize_t;
enum muonrt_normalize {
  /** safety x norm, computed without overflow or underflow. */
  MUONRT_NORMALIZE_PRESCALED = 0,

  /** safety x norm + normalize_eps. */
  MUONRT_NORMALIZE_ADD_EPS = 1,

  /** max(safety x norm, normalize_eps). */
  MUONRT_NORMALIZE_MAX_EPS = 2
};

/** How rows are scaled before the Newton-Schulz iteration. */
typedef int32_t muonrt_row_scaling_t;
enum muonrt_row_scaling {
  /** Rows are not scaled. */
  MUONRT_ROW_SCALING_NONE = 0,

  /**
   * Row i of X is divided by sqrt(sum_j |(X X^T)_ij|), where X is the normalized matrix, transposed
   * if it has more rows than columns (Turbo-Muon, arXiv 2512.04632).
   */
  MUONRT_ROW_SCALING_AOL = 1,

  /** All rows are scaled to the same norm (MuonEq, arXiv 2603.28254). */
  MUONRT_ROW_SCALING_EQUILIBRATE = 2
};

/** Weight decay of a weight W; rate is the learning rate times all lr_factors. */
typedef int32_t muonrt_weight_decay_kind_t;
enum muonrt_weight_decay_kind {
  /** W -= rate weight_decay W. */
  MUONRT_WEIGHT_DECAY_DECOUPLED = 0,

  /** W -= weight_decay W. */
  MUONRT_WEIGHT_DECAY_INDEPENDENT = 1,

  /** W -= rate^2 weight_decay W. */
  MUONRT_WEIGHT_DECAY_LR_SQUARED = 2,

  /** Like MUONRT_WEIGHT_DECAY_DECOUPLED, but only for elements with update x weight >= 0. */
  MUONRT_WEIGHT_DECAY_CAUTIOUS = 3
};

/**
 * The update of AdamW, with moments m and v and the parameter's update count t = 1, 2, ...
 *
 * Below, m' = m / (1 - beta1^t) and v' = v / (1 - beta2^t).
 */
typedef int32_t muonrt_adam_form_t;
enum muonrt_adam_form {
  /** m' / (sqrt(v') + eps), as in PyTorch. */
  MUONRT_ADAM_TORCH = 0,

  /** sqrt(1 - beta2^t) m' / (sqrt(v) + eps). */
  MUONRT_ADAM_FOLDED = 1,

  /**
   * Like MUONRT_ADAM_TORCH, but with beta1 m / (1 - beta1^(t + 1)) + (1 - beta1) g / (1 - beta1^t)
   * instead of m'.
   */
  MUONRT_ADAM_NESTEROV = 2
};

/**
 * The settings of a group.
 *
 * Call muonrt_group_init_muon() or muonrt_group_init_adamw() before you set fields. All fields must
 * be equal on all ranks. Unless a field says otherwise, settings of Muon have no effect in a group
 * for AdamW and vice versa, but they must be in range.
 *
 * Unless a field says otherwise, 0 means zero and not "default", and numbers are at most 1e30. NaN
 * is rejected. Fields marked "Fixed" do not change after the optimizer is created;
 * muonrt_optimizer_set_group() changes the others between steps.
 *
 * @par Coefficients
 * muonrt_optimizer_create() accepts a list of coefficients, including a custom list, only if
 *   - singular values that are in (0, 1] before the first step never exceed 4 after a step;
 *   - all steps together map singular values of up to 1 + 2^-7 (in f32 1 + 2^-20) to positive
 *     values of at most max(1.5, 1.25 y), where y is the largest result for values in (0, 1].
 */
typedef struct muonrt_group {
  /** Size of the struct in bytes; set by the init macro. */
  uint32_t struct_size;

  /** MUONRT_ROLE_MUON or MUONRT_ROLE_ADAMW; set by the init macro. Fixed. */
  muonrt_role_t role;

  /**
   * Name for messages and the printed plan, not empty and without control characters. Fixed.
   * Default: NULL.
   */
  const char* name;

  /** Factor by which the learning rate of the step is multiplied, >= 0. Default: 1. */
  double lr_factor;

  /** Weight decay, >= 0; see `weight_decay_kind`. Default: 0.1 for Muon, 0.01 for AdamW. */
  double weight_decay;

  /** Muon: momentum coefficient; 0 <= momentum < 1, also after rounding to f32. Default: 0.95. */
  double momentum;

  /** Muon: kind of momentum. Fixed. Default: MUONRT_MOMENTUM_EMA. */
  muonrt_momentum_kind_t momentum_kind;

  /** Muon: 1 enables Nesterov momentum, and 0 disables it. Default: 1. */
  int32_t nesterov;

  /** Muon: coefficients of Newton-Schulz. Fixed. Default: MUONRT_COEFFICIENTS_POLAR_EXPRESS. */
  muonrt_coefficients_t coefficients;

  /** Muon: Newton-Schulz steps, 1 to 32; 0 means the list's published number. Fixed. Default: 5. */
  int32_t steps;

  /**
   * Muon with Polar Express or CANS: smallest singular value for which the list is made,
   * 1e-12 <= lower_bound < 1. Fixed. Default: 1e-3.
   */
  double lower_bound;

  /** Muon with Polar Express: cushion of the list, 0 <= cushion < 1. Fixed. Default: 0.02. */
  double cushion;

  /**
   * Muon: safety factor, 1 to 2; see `safety_mode`. Fixed. Default: 0, which means 1.02 for Polar
   * Express, CANS and cubic, and 1 for the other lists.
   */
  double safety;

  /** Muon: how `safety` is applied. Fixed. Default: MUONRT_SAFETY_AUTO. */
  muonrt_safety_mode_t safety_mode;

  /** Muon: how the input is normalized. Fixed. Default: MUONRT_NORMALIZE_PRESCALED. */
  muonrt_normalize_t normalize;

  /**
   * Muon: `steps` triples (a, b, c), each number from -1e6 to 1e6, for MUONRT_COEFFICIENTS_CUSTOM;
   * NULL otherwise. See "Coefficients" above. Fixed. Default: NULL.
   */
  const double* custom;

  /** Muon: rule for the scale of updates. Fixed. Default: MUONRT_SCALE_MATCH_RMS. */
  muonrt_scale_rule_t scale_rule;

  /** Muon: form of Newton-Schulz. Fixed. Default: MUONRT_FORM_AUTO. */
  muonrt_form_t form;

  /** Muon: factor by which the scale is multiplied, >= 0. Fixed. Default: 1. */
  double scale_factor;

  /** AdamW: coefficients of the two moments, in the range of `momentum`. Default: 0.9 and 0.95. */
  double beta1, beta2;

  /** AdamW: the epsilon of `adam_form`; 0, or >= 1e-37. Default: 1e-8. */
  double adamw_eps;

  /** Muon: the epsilon of `normalize`, >= 0. Fixed. Default: 1e-7. */
  double normalize_eps;

  /**
   * Muon: the steps before which the Gram form restarts, counted from 0: ascending, 1 to steps - 1.
   * Must be NULL with MUONRT_FORM_STANDARD. Fixed. Default: NULL, which lets muonrt search for
   * restarts with which the error is at most as large as in the standard form in bf16.
   */
  const int32_t* gram_restarts;

  /** Number of elements in `gram_restarts`, 0 to 31; 0 if it is NULL. Default: 0. */
  int32_t n_gram_restarts;

  /** Muon: dtype of the iteration; 0: as in muonrt_tuning_options_t. Fixed. Default: 0. */
  muonrt_dtype_t iteration_dtype;

  /** Muon: how rows are scaled before the iteration. Fixed. Default: MUONRT_ROW_SCALING_NONE. */
  muonrt_row_scaling_t row_scaling;

  /**
   * Muon: period P, 1 to 10^9, equal in all groups with P > 1. Steps 0, P, 2P, ... orthogonalize
   * whole matrices; other steps orthogonalize each block of a matrix separately. P > 1 is rejected
   * if a parameter has a partial gradient or a `grad_layout`. Fixed. Default: 1, which means no
   * blocks.
   */
  int32_t block_period;

  /**
   * Muon: number of blocks along the rows and the columns of each matrix or part, 1 to 1024. A
   * block has ceil(rows / block_rows) rows, so small matrices may have fewer blocks. Fixed.
   * Default: 1.
   */
  int32_t block_rows, block_cols;

  /** Muon: factor of updates, but not of weight decay, in block steps, >= 0. Default: 1. */
  double block_lr_factor;

  /** Kind of weight decay. Fixed. Default: MUONRT_WEIGHT_DECAY_DECOUPLED. */
  muonrt_weight_decay_kind_t weight_decay_kind;

  /** AdamW: form of the update. Fixed. Default: MUONRT_ADAM_TORCH. */
  muonrt_adam_form_t adam_form;

  /**
   * AdamW: only every update_every-th committed step updates the group and applies weight decay to
   * it, with the gradient of that step; 1 to 2^30, and 1 for Muon. Fixed. Default: 1. In the other
   * steps the gradient may be NULL; if one is bound, it counts for clip_norm and must be finite.
   */
  int32_t update_every;

  /**
   * Dtype of the momentum: MUONRT_DTYPE_F32, or, only for Muon, MUONRT_DTYPE_BF16 with stochastic
   * rounding. Fixed. Default: MUONRT_DTYPE_F32.
   */
  muonrt_dtype_t momentum_dtype;

  /**
   * Muon: axis of NorMuon. Must be MUONRT_NORMUON_OFF for AdamW, and if a group has
   * block_period > 1. A matrix with a single row or column is not changed. Fixed. Default:
   * MUONRT_NORMUON_OFF.
   */
  muonrt_normuon_axis_t normuon_axis;

  /**
   * Muon: 1 scales each matrix, after the iteration, to the Frobenius norm sqrt(min(rows, cols))
   * (Muon+, arXiv 2602.21545). Fixed. Default: 0.
   */
  int32_t renormalize;

  /** Muon: decay of NorMuon's second moments, in the range of `momentum`. Default: 0.95. */
  double normuon_beta2;
} muonrt_group_t;

/**
 * Sets every field of `group` to its default for Muon.
 *
 * Call it through the macro muonrt_group_init_muon(), which passes the size.
 *
 * Threads: any.
 *
 * @param[out] group  The struct to fill; NULL is accepted.
 * @param[in]  size   Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_group_init_muon_sized(muonrt_group_t* group, uint32_t size);
#define muonrt_group_init_muon(group) muonrt_group_init_muon_sized((group), sizeof(muonrt_group_t))

/**
 * Sets every field of `group` to its default for AdamW.
 *
 * Call it through the macro muonrt_group_init_adamw(), which passes the size.
 *
 * Threads: any.
 *
 * @param[out] group  The struct to fill; NULL is accepted.
 * @param[in]  size   Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_group_init_adamw_sized(muonrt_group_t* group, uint32_t size);
#define muonrt_group_init_adamw(group) \
  muonrt_group_init_adamw_sized((group), sizeof(muonrt_group_t))

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_GROUP_H */
