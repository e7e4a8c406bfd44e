/**
 * @file muonrt/group.h
 * Parameter groups: the settings that all parameters of a group share.
 */
#ifndef MUONRT_GROUP_H
#define MUONRT_GROUP_H

#include "muonrt/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * How Muon accumulates gradients g in its momentum m. The coefficient mu is the field `momentum`.
 * Without `nesterov`, Muon orthogonalizes m. With `nesterov`, it orthogonalizes (1 - mu) g + mu m,
 * or g + mu m for MUONRT_MOMENTUM_HEAVY_BALL.
 */
typedef int32_t muonrt_momentum_kind_t;
enum muonrt_momentum_kind {
  /** Exponential moving average: m = mu m + (1 - mu) g. */
  MUONRT_MOMENTUM_EMA = 0,

  /** Heavy ball: m = mu m + g. */
  MUONRT_MOMENTUM_HEAVY_BALL = 1,

  /**
   * Like MUONRT_MOMENTUM_EMA, but with Optax's bias correction: Muon orthogonalizes m / (1 - mu^t)
   * or, with `nesterov`, (1 - mu) g / (1 - mu^t) + mu m / (1 - mu^(t + 1)). Here t = 1, 2, ...
   * counts the committed steps of the optimizer, not the updates of the parameter.
   */
  MUONRT_MOMENTUM_EMA_CORRECTED = 2
};

/**
 * Lists of coefficients, with one triple (a, b, c) for each Newton-Schulz step. The step maps a
 * singular value x to a x + b x^3 + c x^5.
 */
typedef int32_t muonrt_coefficients_t;
enum muonrt_coefficients {
  /** Polar Express, computed from `steps`, `lower_bound`, `cushion` and `safety`. */
  MUONRT_COEFFICIENTS_POLAR_EXPRESS = 0,

  /** Keller Jordan: the triple (3.4445, -4.7750, 2.0315) in every step. */
  MUONRT_COEFFICIENTS_KELLER_JORDAN = 1,

  /** You Jiacheng: five triples; `steps` must be 5. */
  MUONRT_COEFFICIENTS_YOU_JIACHENG = 2,

  /** CANS, computed from `steps` and `lower_bound`; `cushion` has no effect. */
  MUONRT_COEFFICIENTS_CANS = 3,

  /** DeepSeek-V4: Keller Jordan's triple in eight steps, then (2, -1.5, 0.5); `steps` >= 9. */
  MUONRT_COEFFICIENTS_DEEPSEEK_V4 = 4,

  /** Cubic: five triples with c = 0; `steps` must be 5. */
  MUONRT_COEFFICIENTS_CUBIC = 5,

  /** Classical: the triple (15/8, -10/8, 3/8) in every step. */
  MUONRT_COEFFICIENTS_CLASSICAL = 6,

  /** Turbo-Muon: four triples, for use with MUONRT_ROW_SCALING_AOL; `steps` must be 4. */
  MUONRT_COEFFICIENTS_AOL = 7,

  /** The list in `custom`. */
  MUONRT_COEFFICIENTS_CUSTOM = 100
};

/**
 * The factor by which an orthogonalized update is multiplied, depending on the shape of the matrix.
 * In all settings, rows are the outputs of a layer and columns are its inputs, even if the
 * parameter is stored `transposed`.
 */
typedef int32_t muonrt_scale_rule_t;
enum muonrt_scale_rule {
  /** 0.2 sqrt(max(rows, cols)): gives about AdamW's update RMS, so use AdamW's learning rates. */
  MUONRT_SCALE_MATCH_RMS = 0,

  /** sqrt(max(1, rows / cols)), as in the original Muon by Keller Jordan. */
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
   * MUONRT_FORM_GRAM if the short side is at least 512, the long side is at least 1.5 times the
   * short side, and the Gram form has bounded rounding errors and needs no wider dtype than the
   * standard form. Otherwise MUONRT_FORM_STANDARD.
   */
  MUONRT_FORM_AUTO = 0,

  /** The iteration runs on the matrix X itself. */
  MUONRT_FORM_STANDARD = 1,

  /** The iteration runs on the smaller Gram matrix: X X^T if X is wide, and X^T X if X is tall. */
  MUONRT_FORM_GRAM = 2
};

/**
 * How the factor `safety` is applied. Rounding can increase singular values to more than 1, and the
 * factor keeps them in the range for which the coefficients were computed.
 */
typedef int32_t muonrt_safety_mode_t;
enum muonrt_safety_mode {
  /**
   * MUONRT_SAFETY_INNER for Polar Express, and for CANS in bf16 and f16. MUONRT_SAFETY_NONE for
   * other lists and dtypes. If the Gram form runs in f16, Polar Express and CANS use
   * MUONRT_SAFETY_ALL instead, with the factor 1.05 if `safety` is 0.
   */
  MUONRT_SAFETY_AUTO = 0,

  /**
   * Only for Polar Express and CANS: when muonrt computes the list, it replaces every polynomial
   * p(x) except the last with p(x / safety). The input is divided by safety * norm.
   */
  MUONRT_SAFETY_INNER = 1,

  /** Every polynomial p(x) is replaced with p(x / safety). The input is divided by its norm. */
  MUONRT_SAFETY_ALL = 2,

  /**
   * The list is used unchanged, and the input is divided by safety * norm. In bf16 and f16, muonrt
   * rejects lists in which later steps would amplify the rounding errors of earlier ones.
   */
  MUONRT_SAFETY_NONE = 3
};

/** The divisor of the Newton-Schulz input. Here norm is the Frobenius norm of the input. */
typedef int32_t muonrt_normalize_t;
enum muonrt_normalize {
  /** safety * norm, computed without overflow or underflow. */
  MUONRT_NORMALIZE_PRESCALED = 0,

  /** safety * norm + normalize_eps. */
  MUONRT_NORMALIZE_ADD_EPS = 1,

  /** max(safety * norm, normalize_eps). */
  MUONRT_NORMALIZE_MAX_EPS = 2
};

/** How rows are scaled before the Newton-Schulz iteration. */
typedef int32_t muonrt_row_scaling_t;
enum muonrt_row_scaling {
  /** Rows are not scaled. */
  MUONRT_ROW_SCALING_NONE = 0,

  /**
   * Row i of X is divided by sqrt(sum_j |(X X^T)_ij|) (Turbo-Muon, arXiv 2512.04632). X is the
   * normalized matrix, or its transpose if the matrix has more rows than columns.
   */
  MUONRT_ROW_SCALING_AOL = 1,

  /** All rows are scaled to the same norm (MuonEq, arXiv 2603.28254). */
  MUONRT_ROW_SCALING_EQUILIBRATE = 2
};

/** How a step decays a weight W. Here rate is the learning rate multiplied by all lr_factors. */
typedef int32_t muonrt_weight_decay_kind_t;
enum muonrt_weight_decay_kind {
  /** W -= rate * weight_decay * W. */
  MUONRT_WEIGHT_DECAY_DECOUPLED = 0,

  /** W -= weight_decay * W. */
  MUONRT_WEIGHT_DECAY_INDEPENDENT = 1,

  /** W -= rate^2 * weight_decay * W. */
  MUONRT_WEIGHT_DECAY_LR_SQUARED = 2,

  /** Like MUONRT_WEIGHT_DECAY_DECOUPLED, but only for elements with update * weight >= 0. */
  MUONRT_WEIGHT_DECAY_CAUTIOUS = 3
};

/**
 * The update of AdamW. Here m and v are the moments, t = 1, 2, ... is the parameter's update count,
 * m' is m / (1 - beta1^t), and v' is v / (1 - beta2^t).
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
 * The settings of a parameter group.
 *
 * Call muonrt_group_init_muon() or muonrt_group_init_adamw() before you set fields. All fields must
 * be equal on all ranks. Fields marked "Muon" have no effect in a group for AdamW, and fields
 * marked "AdamW" have no effect in a group for Muon, but their values must still be in range.
 *
 * Unless a field's comment says otherwise, 0 means zero, not "default", and numbers must not exceed
 * 1e30. NaN is rejected. Fields marked "Fixed" cannot change after the optimizer is created. Use
 * muonrt_optimizer_set_group() to change the other fields between steps.
 *
 * @par Coefficients
 * muonrt_optimizer_create() rejects a list of coefficients unless both conditions are true:
 *   - Singular values that start in (0, 1] never exceed 4 after a step.
 *   - Let y be the largest result of all steps for values in (0, 1]. Then the results for values up
 *     to 1 + 2^-7 (in f32: 1 + 2^-20) are positive and at most max(1.5, 1.25 y).
 */
typedef struct muonrt_group {
  /** Size of the struct in bytes; set by the init macro. */
  uint32_t struct_size;

  /** MUONRT_ROLE_MUON or MUONRT_ROLE_ADAMW; set by the init macro. Fixed. */
  muonrt_role_t role;

  /**
   * Name for messages and the printed plan, not empty and without control characters. Fixed.
   * Default: NULL, which means no name.
   */
  const char* name;

  /** Factor by which the step's learning rate is multiplied, >= 0. Default: 1. */
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

  /** Muon: Newton-Schulz steps, 1 to 32; 0 means the published number. Fixed. Default: 5. */
  int32_t steps;

  /**
   * Muon with Polar Express or CANS: the smallest singular value for which the list is optimized,
   * 1e-12 <= lower_bound < 1. Fixed. Default: 1e-3.
   */
  double lower_bound;

  /** Muon: the cushion parameter of Polar Express, 0 <= cushion < 1. Fixed. Default: 0.02. */
  double cushion;

  /**
   * Muon: safety factor, 1 to 2; see `safety_mode`. Fixed. Default: 0, which means 1.02 for Polar
   * Express, CANS and cubic, and 1 for the other lists.
   */
  double safety;

  /** Muon: how `safety` is applied. Fixed. Default: MUONRT_SAFETY_AUTO. */
  muonrt_safety_mode_t safety_mode;

  /** Muon: how the input matrix is normalized. Fixed. Default: MUONRT_NORMALIZE_PRESCALED. */
  muonrt_normalize_t normalize;

  /**
   * Muon with MUONRT_COEFFICIENTS_CUSTOM: `steps` triples (a, b, c) of numbers from -1e6 to 1e6;
   * see "Coefficients" above. NULL otherwise. Fixed. Default: NULL.
   */
  const double* custom;

  /** Muon: how updates are scaled. Fixed. Default: MUONRT_SCALE_MATCH_RMS. */
  muonrt_scale_rule_t scale_rule;

  /** Muon: form of Newton-Schulz. Fixed. Default: MUONRT_FORM_AUTO. */
  muonrt_form_t form;

  /** Muon: factor by which the scale is multiplied, >= 0. Fixed. Default: 1. */
  double scale_factor;

  /** AdamW: decay of the two moments, in the same range as `momentum`. Default: 0.9 and 0.95. */
  double beta1, beta2;

  /** AdamW: the epsilon of `adam_form`; 0, or >= 1e-37. Default: 1e-8. */
  double adamw_eps;

  /** Muon: the epsilon of `normalize`, >= 0. Fixed. Default: 1e-7. */
  double normalize_eps;

  /**
   * Muon: indices (1 to steps - 1, ascending) of the Newton-Schulz steps before which the Gram form
   * restarts. The first step has index 0. A restart applies the previous steps to the matrix and
   * computes a new Gram matrix. Must be NULL with MUONRT_FORM_STANDARD. Fixed. Default: NULL:
   * muonrt chooses restarts that keep the error at or below that of the standard form in bf16.
   */
  const int32_t* gram_restarts;

  /** Number of elements in `gram_restarts`, 0 to 31; 0 if it is NULL. Default: 0. */
  int32_t n_gram_restarts;

  /** Muon: dtype of the iteration; 0 means the optimizer's `iteration_dtype`. Fixed. Default: 0. */
  muonrt_dtype_t iteration_dtype;

  /** Muon: how rows are scaled before the iteration. Fixed. Default: MUONRT_ROW_SCALING_NONE. */
  muonrt_row_scaling_t row_scaling;

  /**
   * Muon: the period P, 1 to 10^9. Steps 0, P, 2P, ... orthogonalize whole matrices. The other
   * steps, called block steps, orthogonalize each block of a matrix separately. If P is above 1, it
   * must be equal in all groups with block steps, and no parameter of the optimizer may have a
   * partial gradient or a `grad_layout`. Fixed. Default: 1.
   */
  int32_t block_period;

  /**
   * Muon: number of blocks into which the rows and the columns of each matrix or part are divided,
   * 1 to 1024. A block has ceil(rows / block_rows) rows, so a small matrix may have fewer blocks.
   * Fixed. Default: 1.
   */
  int32_t block_rows, block_cols;

  /** Muon: factor for updates in block steps, >= 0; not applied to weight decay. Default: 1. */
  double block_lr_factor;

  /** Kind of weight decay. Fixed. Default: MUONRT_WEIGHT_DECAY_DECOUPLED. */
  muonrt_weight_decay_kind_t weight_decay_kind;

  /** AdamW: form of the update. Fixed. Default: MUONRT_ADAM_TORCH. */
  muonrt_adam_form_t adam_form;

  /**
   * AdamW: number of committed steps per update, 1 to 2^30; must be 1 for Muon. An update uses only
   * the gradient of its own step. In the other steps, weights do not decay, and the gradient may be
   * NULL. A gradient that is not NULL must be finite, and clip_norm includes it. Fixed. Default: 1.
   */
  int32_t update_every;

  /**
   * Dtype of the momentum: MUONRT_DTYPE_F32 or, for Muon only, MUONRT_DTYPE_BF16 with stochastic
   * rounding. Fixed. Default: MUONRT_DTYPE_F32.
   */
  muonrt_dtype_t momentum_dtype;

  /**
   * Muon: axis of NorMuon. Must be MUONRT_NORMUON_OFF for AdamW, and for all groups if any group
   * has block_period > 1. NorMuon does not change a matrix with a single row or column. Fixed.
   * Default: MUONRT_NORMUON_OFF.
   */
  muonrt_normuon_axis_t normuon_axis;

  /**
   * Muon: 1 scales each matrix to the Frobenius norm sqrt(min(rows, cols)) after the iteration
   * (Muon+, arXiv 2602.21545). Fixed. Default: 0.
   */
  int32_t renormalize;

  /** Muon: decay of NorMuon's second moments, in the same range as `momentum`. Default: 0.95. */
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
