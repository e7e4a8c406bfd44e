/**
 * @file muonrt/param.h
 * Describes a parameter on one rank: buffers, shape, layout, master weights, parts and QK-clip.
 */
#ifndef MUONRT_PARAM_H
#define MUONRT_PARAM_H

#include "muonrt/base.h"
#include "muonrt/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How muonrt stores the bits of the f32 weights that the parameter's dtype cannot represent. */
typedef int32_t muonrt_master_kind_t;
enum muonrt_master_kind {
  /** MUONRT_MASTER_OWNED for bf16 parameters, MUONRT_MASTER_NONE for f32 parameters. */
  MUONRT_MASTER_AUTO = 0,

  /** No additional bits are stored. */
  MUONRT_MASTER_NONE = 1,

  /** f32 master weights in memory that muonrt allocates. */
  MUONRT_MASTER_OWNED = 2,

  /** f32 master weights in the caller's memory; see `master` of muonrt_param_t. */
  MUONRT_MASTER_CALLER = 3,

  /**
   * For bf16 parameters only: a 16-bit remainder per weight (MUONRT_STATE_REMAINDER). The parameter
   * is the f32 weight rounded to bf16. If p and r are the bits of the parameter and of the
   * remainder, the bits of the f32 weight are ((uint32_t)p << 16) + (uint32_t)(int16_t)r, modulo
   * 2^32.
   */
  MUONRT_MASTER_REMAINDER = 4,

  /**
   * For bf16 parameters only: no additional bits are stored, but the step rounds the updated
   * weights stochastically, so the rounding has no bias; see `seed` of muonrt_optimizer_options_t.
   * AdamW does not support this kind if the gradient is partial (muonrt/layout.h) or has its own
   * layout (`grad_layout`).
   */
  MUONRT_MASTER_STOCHASTIC = 5
};

/** How the dimensions of a tensor form matrices. muonrt never infers this from the shape. */
typedef int32_t muonrt_view_t;
enum muonrt_view {
  /**
   * The dimensions are used unchanged. A Muon parameter must have two dimensions: rows and columns.
   */
  MUONRT_VIEW_NONE = 0,

  /** Three dimensions, experts x rows x columns: one matrix per expert. */
  MUONRT_VIEW_STACK = 1,

  /**
   * All dimensions after the first are merged into the columns, as is usual for convolution
   * weights.
   */
  MUONRT_VIEW_FLATTEN = 2
};

/**
 * A part of each matrix of a parameter. Muon orthogonalizes the part as a separate matrix.
 *
 * A part is a set of rows and columns, for example the query rows of a fused QKV weight, one head,
 * or one half of gate_up. The scale of its update depends on the shape of the part, not on the
 * shape of the matrix; see `scale_rule` of muonrt_group_t. The parts must cover each matrix of the
 * parameter without overlap. Rows are the outputs of the layer, even if the parameter is
 * `transposed`.
 *
 * Call muonrt_part_init() before you set fields. All fields must be equal on all ranks.
 */
typedef struct muonrt_part {
  /** Size of the struct in bytes; set by muonrt_part_init(). */
  uint32_t struct_size;

  /** Reserved; 0. */
  int32_t reserved;

  /** Name used in messages, not empty. Default: NULL, which means the index of the part. */
  const char* name;

  /**
   * `n_rows` ranges of rows: non-empty, ascending, disjoint. Default: NULL, which means all rows.
   */
  const muonrt_run_t* rows;

  /** Number of ranges in `rows`; 0 if it is NULL. Default: 0. */
  int64_t n_rows;

  /**
   * `n_cols` ranges of columns: non-empty, ascending, disjoint. Default: NULL, which means all
   * columns.
   */
  const muonrt_run_t* cols;

  /** Number of ranges in `cols`; 0 if it is NULL. Default: 0. */
  int64_t n_cols;

  /** Factor by which the group's scale_factor is multiplied, 0 to 1e30. Default: 1. */
  double scale_factor;

  /** Factor by which the parameter's lr_factor is multiplied, 0 to 1e30. Default: 1. */
  double lr_factor;

  /**
   * Axis of NorMuon for this part; may be set only if the group uses NorMuon. Default:
   * MUONRT_NORMUON_OFF, which selects the axis of the parameter.
   */
  muonrt_normuon_axis_t normuon_axis;

  /** Reserved; 0. */
  int32_t reserved_2;
} muonrt_part_t;

/**
 * Settings of QK-clip for one weight of an attention layer.
 *
 * QK-clip keeps attention logits small: if a logit of a head is too large, the step scales down the
 * rows of the query and key weights of this head.
 *
 * Each query head h has a factor gamma(h). If the head's largest logit exceeds `threshold`,
 * gamma(h) is `threshold` divided by this logit; otherwise it is 1. For a key head k, gamma(k) is
 * the smallest gamma of the query heads that share this key head. The step multiplies the rows of
 * the updated weight by powers of gamma, before it rounds the weight. The following list gives the
 * number of rows and the factors for each kind of weight. In this list, e is `exponent`, and k is
 * the key head of a row:
 *   - MUONRT_QK_QUERY: heads x head_dim rows; gamma(h)^e.
 *   - MUONRT_QK_KEY: kv_heads x head_dim rows; gamma(k)^(1 - e).
 *   - MUONRT_QK_MLA_QUERY: heads x (nope + rope) rows; gamma(k)^e for `nope` rows, gamma(k) for
 *     `rope` rows.
 *   - MUONRT_QK_MLA_KEY_VALUE: kv_heads x (nope + v_dim) rows; gamma(k)^(1 - e) for `nope` rows, 1
 *     for values.
 *   - MUONRT_QK_QKV: (heads + 2 kv_heads) x head_dim rows. For each key head, the rows of its query
 *     heads come first, then those of the key head itself, then those of its value head. Queries
 *     and keys have the factors above; values have the factor 1.
 *   - MUONRT_QK_QKV_BLOCKS: like MUONRT_QK_QKV, but with the rows of all query heads first, then of
 *     all key heads, then of all value heads.
 *
 * With MUONRT_QK_FROM_NAME, muonrt derives the kind and the layer from the name of the parameter,
 * by the rules of muonrt_qk_layer_parse(). You can then use one struct for all parameters of a
 * model. Parameters with other names, and parameters with one dimension, such as biases, are not
 * clipped. If `nope` or `rope` is above 0, muonrt assumes multi-head latent attention (MLA). The
 * names "wq" and "q_proj" then mean MUONRT_QK_MLA_QUERY, and "wk" and "k_proj" are rejected. For
 * MLA, `head_dim` must be 0 or nope + rope, and muonrt ignores sizes that do not apply to the kind.
 * A layer with two query weights, or with two key weights, is rejected.
 *
 * In MLA, a query head uses the gamma of its key head. If it used its own gamma, the two terms of a
 * logit, q_nope k_nope and q_rope k_rope, could shrink by different factors. The gammas of a query
 * head and its key head can differ only if `kv_heads` is below `heads`. To clip each query head by
 * its own gamma, give the query weights a separate struct with `kv_heads` 0.
 *
 * Call muonrt_qk_clip_init() before you set fields. All fields must be equal on all ranks, and each
 * size is at most 2^20.
 */
typedef struct muonrt_qk_clip {
  /** Size of the struct in bytes; set by muonrt_qk_clip_init(). */
  uint32_t struct_size;

  /** Kind of the weight. Default: MUONRT_QK_NONE, which means no QK-clip. */
  muonrt_qk_kind_t kind;

  /**
   * Number of the layer, 0 to 2^20, the same for all weights of a layer. -1 selects the last part
   * of the parameter's name that is a number, such as 3 in "layers.3.wq". MUONRT_QK_FROM_NAME
   * ignores this field. Default: 0.
   */
  int32_t layer;

  /** Number of query heads, >= 1, the same for all weights of a layer. Default: 0. */
  int32_t heads;

  /** Number of key heads, a divisor of `heads`. Default: 0, which means `heads`. */
  int32_t kv_heads;

  /** Rows per head of MUONRT_QK_QUERY, _KEY and the fused kinds; 0 for others. Default: 0. */
  int32_t head_dim;

  /**
   * Rows per head without (`nope`) and with (`rope`) rotary embedding. MUONRT_QK_MLA_QUERY uses
   * both, MUONRT_QK_MLA_KEY_VALUE uses `nope`, and for other kinds both are 0. Default: 0.
   */
  int32_t nope, rope;

  /** Rows of values per head of MUONRT_QK_MLA_KEY_VALUE; 0 for other kinds. Default: 0. */
  int32_t v_dim;

  /** Number of elements in `select`; 0 if it is NULL. Default: 0. */
  int32_t n_select;

  /**
   * Indices of the query heads that may be clipped, all different. Default: NULL, which means all
   * heads.
   */
  const int32_t* select;

  /** Limit of a logit, > 0 and < 1e30. Default: 100. */
  double threshold;

  /**
   * The exponent e above, 0 to 1. A larger value scales queries more and keys less. Default: 0.5.
   */
  double exponent;
} muonrt_qk_clip_t;

/**
 * A parameter, with the buffers of one rank.
 *
 * Call muonrt_param_init() before you set fields. All fields must be equal on all ranks, except the
 * buffers, `local_shape`, `strides` and `grad_strides`.
 *
 * Buffers must be row-major, contiguous and aligned to the size of an element, and the optimizer's
 * device must be able to access them. Buffers must not overlap when the optimizer is created. The
 * buffers belong to the caller and must stay valid until the optimizer is destroyed or another
 * buffer is bound.
 */
typedef struct muonrt_param {
  /** Size of the struct in bytes; set by muonrt_param_init(). */
  uint32_t struct_size;

  /** Index of the group. Default: 0. */
  int32_t group;

  /** Name, unique in the optimizer, not empty and without control characters. No default. */
  const char* name;

  /** Number of dimensions of the global tensor, 0 to MUONRT_MAX_DIMS. Default: 0. */
  int32_t ndim;

  /** Dtype of `data`: MUONRT_DTYPE_F32 or MUONRT_DTYPE_BF16. Default: MUONRT_DTYPE_F32. */
  muonrt_dtype_t dtype;

  /** Sizes of the `ndim` dimensions of the global tensor: >= 0, and for Muon >= 1. */
  const int64_t* shape;

  /** How the tensor is distributed. Default: NULL, which means replicated over all ranks. */
  const muonrt_layout_t* layout;

  /**
   * `ndim` sizes of this rank's shard. muonrt checks that muonrt_layout_get_local_shape() returns
   * the same sizes. Default: NULL, which skips the check.
   */
  const int64_t* local_shape;

  /** The local shard, which steps overwrite; may be NULL if this rank holds no elements. */
  void* data;

  /**
   * This rank's shard of the gradient, distributed according to `grad_layout`, or according to
   * `layout` if `grad_layout` is NULL. The caller must have reduced the gradient over all replicas,
   * except over mesh dimensions that are partial (MUONRT_PLACEMENT_PARTIAL). Default: NULL, which
   * means that you bind a gradient later; see muonrt_optimizer_set_grad().
   */
  const void* grad;

  /** Dtype of `grad`: MUONRT_DTYPE_F32 or MUONRT_DTYPE_BF16. Default: 0, which means `dtype`. */
  muonrt_dtype_t grad_dtype;

  /** How muonrt stores the bits that `dtype` cannot represent. Default: MUONRT_MASTER_AUTO. */
  muonrt_master_kind_t master_kind;

  /**
   * With MUONRT_MASTER_CALLER, the f32 master weights of the local shard, which the caller has
   * initialized. Other kinds require NULL. Default: NULL.
   */
  float* master;

  /**
   * For Muon, the rank that orthogonalizes the parameter. This rank must hold a shard (possibly
   * empty) of each matrix. For stacks, see `owners`. Default: -1, which lets muonrt choose. For
   * AdamW, and if `assign` of muonrt_distributed_config_t is set, -1 is required.
   */
  int32_t owner;

  /** How the dimensions form matrices. Default: MUONRT_VIEW_NONE. */
  muonrt_view_t view;

  /**
   * For Muon, the `n_parts` parts of each matrix. Default: NULL, which means that the matrix is not
   * divided.
   */
  const muonrt_part_t* parts;

  /** Number of elements in `parts`. Default: 0. */
  int64_t n_parts;

  /**
   * Factor by which the group's learning rate is multiplied, 0 to 1e30. It affects updates and
   * weight decay. Default: 1.
   */
  double lr_factor;

  /**
   * Settings of QK-clip, for Muon parameters that are a single matrix. Default: NULL, which means
   * none.
   */
  const muonrt_qk_clip_t* qk_clip;

  /**
   * Axis of NorMuon for this parameter; may be set only if the group uses NorMuon. Default:
   * MUONRT_NORMUON_OFF, which selects the axis of the group.
   */
  muonrt_normuon_axis_t normuon_axis;

  /** Parameters with lower numbers are exchanged first in a step. Default: 0. */
  int32_t priority;

  /**
   * 1: matrices are stored as inputs x outputs, as in GPT-2's Conv1D and in JAX. Cannot be combined
   * with `qk_clip`. Default: 0, which means outputs x inputs.
   */
  int32_t transposed;

  /**
   * Layout of the gradient, for gradients whose placements differ from those of `layout` and for
   * gradients with partial dimensions. If this field is set, `layout` must not have partial
   * dimensions, and the momentum and variance are not stored with the shards; see
   * muonrt_state_shard_t. Default: NULL, which means `layout`.
   */
  const muonrt_layout_t* grad_layout;

  /**
   * An alternative to `view`; to use it, leave `view` at MUONRT_VIEW_NONE. The first `batch_dims`
   * dimensions select a matrix of a stack. The next `row_dims` dimensions (0 means 1) are merged
   * into the rows of the matrix as stored in memory. The remaining dimensions, at least one, are
   * merged into the columns. Both fields must be 0 to 7. Default: 0 and 0, which means that `view`
   * applies.
   */
  int32_t batch_dims, row_dims;

  /**
   * `ndim` strides, in elements. `strides` describes `data` and `master`, and `grad_strides`
   * describes `grad`. muonrt rejects strides that are not row-major and contiguous. For a flat
   * range it reads only the first stride. Default: NULL, which skips the check.
   */
  const int64_t *strides, *grad_strides;

  /**
   * For Muon, `n_owners` ranks, one for each matrix of the stack. Each element is the rank that
   * orthogonalizes the matrix, or -1, which lets muonrt choose. The rank must hold a shard of the
   * matrix. If `owners` is set, `owner` must be -1. Default: NULL, which means that `owner`
   * applies.
   */
  const int32_t* owners;

  /**
   * Number of elements in `owners`: the number of matrices in the stack, or 0 if `owners` is NULL.
   * Default: 0.
   */
  int64_t n_owners;
} muonrt_param_t;

/**
 * Sets every field of `part` to its default.
 *
 * Call it through the macro muonrt_part_init(), which passes the size.
 *
 * Threads: any.
 *
 * @param[out] part  The struct to fill; NULL is accepted.
 * @param[in]  size  Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_part_init_sized(muonrt_part_t* part, uint32_t size);
#define muonrt_part_init(part) muonrt_part_init_sized((part), sizeof(muonrt_part_t))

/**
 * Sets every field of `clip` to its default.
 *
 * Call it through the macro muonrt_qk_clip_init(), which passes the size.
 *
 * Threads: any.
 *
 * @param[out] clip  The struct to fill; NULL is accepted.
 * @param[in]  size  Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_qk_clip_init_sized(muonrt_qk_clip_t* clip, uint32_t size);
#define muonrt_qk_clip_init(clip) muonrt_qk_clip_init_sized((clip), sizeof(muonrt_qk_clip_t))

/**
 * Sets every field of `param` to its default.
 *
 * Call it through the macro muonrt_param_init(), which passes the size.
 *
 * Threads: any.
 *
 * @param[out] param  The struct to fill; NULL is accepted.
 * @param[in]  size   Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_param_init_sized(muonrt_param_t* param, uint32_t size);
#define muonrt_param_init(param) muonrt_param_init_sized((param), sizeof(muonrt_param_t))

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_PARAM_H */
