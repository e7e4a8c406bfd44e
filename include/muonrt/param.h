/**
 * @file muonrt/param.h
 * A parameter as one rank holds it: buffers, shape, layout, master weights, parts, QK-clip.
 */
#ifndef MUONRT_PARAM_H
#define MUONRT_PARAM_H

#include "muonrt/base.h"
#include "muonrt/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/** How muonrt keeps bits of weights that the parameter's dtype cannot hold. */
typedef int32_t muonrt_master_kind_t;
enum muonrt_master_kind {
  /** MUONRT_MASTER_OWNED for bf16 parameters, MUONRT_MASTER_NONE for f32 parameters. */
  MUONRT_MASTER_AUTO = 0,

  /** No further bits. */
  MUONRT_MASTER_NONE = 1,

  /** f32 master weights in memory of muonrt. */
  MUONRT_MASTER_OWNED = 2,

  /** f32 master weights in memory of the caller; see `master` of muonrt_param_t. */
  MUONRT_MASTER_CALLER = 3,

  /**
   * Only bf16: a remainder of 16 bits per weight (MUONRT_STATE_REMAINDER). The parameter is the
   * rounded f32 weight, whose bits are, in uint32_t arithmetic that wraps around,
   * ((uint32_t)param << 16) + (uint32_t)(int16_t)remainder.
   */
  MUONRT_MASTER_REMAINDER = 4,

  /**
   * Only bf16: no further bits, but updates are rounded randomly, without bias; see `seed` of
   * muonrt_optimizer_options_t. AdamW does not support it for gradients that are partial or have
   * their own layout.
   */
  MUONRT_MASTER_STOCHASTIC = 5
};

/** How the dimensions of a tensor form matrices. muonrt never infers this from the shape. */
typedef int32_t muonrt_view_t;
enum muonrt_view {
  /** Unchanged. Muon requires two dimensions, rows and columns. */
  MUONRT_VIEW_NONE = 0,

  /** Three dimensions, experts x rows x columns: one matrix per expert. */
  MUONRT_VIEW_STACK = 1,

  /** All dimensions after the first are merged into the columns, as for weights of convolutions. */
  MUONRT_VIEW_FLATTEN = 2
};

/**
 * A part of each matrix of a parameter, which Muon orthogonalizes as a separate matrix.
 *
 * A part is a set of rows and columns, for example the query rows of a fused QKV weight, one head,
 * or one half of gate_up. Its scale follows from its own shape. The parts of a parameter must cover
 * its matrix without overlap. Rows are outputs, even if the parameter is `transposed`.
 *
 * Call muonrt_part_init() before you set fields. All fields must be equal on all ranks.
 */
typedef struct muonrt_part {
  /** Size of the struct in bytes; set by muonrt_part_init(). */
  uint32_t struct_size;

  /** Reserved; 0. */
  int32_t reserved;

  /** Name for messages, not empty. Default: NULL, which means the index of the part. */
  const char* name;

  /** `n_rows` ranges of rows: not empty, ascending, disjoint. Default: NULL, which means all. */
  const muonrt_run_t* rows;

  /** Number of ranges in `rows`; 0 if it is NULL. Default: 0. */
  int64_t n_rows;

  /** `n_cols` ranges of columns: not empty, ascending, disjoint. Default: NULL, which means all. */
  const muonrt_run_t* cols;

  /** Number of ranges in `cols`; 0 if it is NULL. Default: 0. */
  int64_t n_cols;

  /** Factor of the group's scale_factor, 0 to 1e30. Default: 1. */
  double scale_factor;

  /** Factor of the parameter's lr_factor, 0 to 1e30. Default: 1. */
  double lr_factor;

  /**
   * Axis of NorMuon; the group must have NorMuon on. Default: MUONRT_NORMUON_OFF, which means the
   * axis of the parameter.
   */
  muonrt_normuon_axis_t normuon_axis;

  /** Reserved; 0. */
  int32_t reserved_2;
} muonrt_part_t;

/**
 * QK-clip of one weight of an attention layer.
 *
 * If the largest logit of a query head h in a step exceeds `threshold`, gamma(h) = threshold /
 * logit, otherwise gamma(h) = 1. The step multiplies rows of the whole weight by powers of gamma,
 * before the weight is rounded. A key head uses the smallest gamma of the query heads that share
 * it. With e = `exponent`, the kinds have these rows and factors:
 *   - MUONRT_QK_QUERY: heads x head_dim rows; gamma(h)^e.
 *   - MUONRT_QK_KEY: kv_heads x head_dim rows; gamma^(1 - e) of the key head.
 *   - MUONRT_QK_MLA_QUERY: heads x (nope + rope) rows; gamma^e of the key head for `nope` rows,
 *     gamma of the key head for `rope` rows.
 *   - MUONRT_QK_MLA_KEY_VALUE: kv_heads x (nope + v_dim) rows; gamma^(1 - e) of the key head for
 *     `nope` rows, 1 for values.
 *   - MUONRT_QK_QKV: (heads + 2 kv_heads) x head_dim rows. For each key head: its query heads, the
 *     key head, its value head. Factors of queries and keys as above, 1 for values.
 *   - MUONRT_QK_QKV_BLOCKS: as many rows, but all query heads, all key heads, all value heads.
 *
 * MUONRT_QK_FROM_NAME reads kind and layer from the name of the parameter, as
 * muonrt_qk_layer_parse() does, so one struct holds for all parameters of a model. Parameters with
 * other names, and those with one dimension, such as biases, are not clipped. If `nope` or `rope`
 * is above 0, the model has MLA: "wq" and "q_proj" are then MUONRT_QK_MLA_QUERY, "wk" and "k_proj"
 * are an error, each kind uses only its own sizes, and `head_dim` is 0 or nope + rope. Two weights
 * that are both queries, or both keys, of one layer are an error.
 *
 * A query head of MLA uses the gamma of its key head. With different gammas for queries and keys,
 * the two parts of a logit, q_nope k_nope and q_rope k_rope, would shrink by different factors. The
 * two gammas differ only if `kv_heads` is below `heads`. To clip each query head by its own gamma,
 * give the query weights their own struct with `kv_heads` 0.
 *
 * Call muonrt_qk_clip_init() before you set fields. All fields must be equal on all ranks, and
 * sizes are at most 2^20.
 */
typedef struct muonrt_qk_clip {
  /** Size of the struct in bytes; set by muonrt_qk_clip_init(). */
  uint32_t struct_size;

  /** Kind of the weight. Default: MUONRT_QK_NONE, which means no QK-clip. */
  muonrt_qk_kind_t kind;

  /**
   * Number of the layer, 0 to 2^20; equal for the weights of a layer. -1: the last part of the
   * parameter's name that is a number. Not read with MUONRT_QK_FROM_NAME. Default: 0.
   */
  int32_t layer;

  /** Number of query heads, >= 1; equal for the weights of a layer. Default: 0. */
  int32_t heads;

  /** Number of key heads, a divisor of `heads`. Default: 0, which means `heads`. */
  int32_t kv_heads;

  /** Rows per head of MUONRT_QK_QUERY, _KEY and the fused kinds; 0 for others. Default: 0. */
  int32_t head_dim;

  /**
   * Rows per head without (`nope`) and with (`rope`) rotary embedding: both for
   * MUONRT_QK_MLA_QUERY, `nope` for MUONRT_QK_MLA_KEY_VALUE, 0 for other kinds. Default: 0.
   */
  int32_t nope, rope;

  /** Rows of values per head of MUONRT_QK_MLA_KEY_VALUE; 0 for other kinds. Default: 0. */
  int32_t v_dim;

  /** Number of elements in `select`; 0 if it is NULL. Default: 0. */
  int32_t n_select;

  /** Indices of the query heads that may be clipped, each once. Default: NULL, which means all. */
  const int32_t* select;

  /** Limit of a logit, > 0 and < 1e30. Default: 100. */
  double threshold;

  /** Share of the factor that queries receive, 0 to 1. Default: 0.5. */
  double exponent;
} muonrt_qk_clip_t;

/**
 * A parameter as one rank holds it.
 *
 * Call muonrt_param_init() before you set fields. All fields must be equal on all ranks, except the
 * buffers, `local_shape`, `strides` and `grad_strides`.
 *
 * Buffers are row-major and contiguous, aligned to their elements, and in memory that the
 * optimizer's device can access. They must not overlap at creation. They belong to the caller and
 * must stay valid until the optimizer is destroyed or another buffer is bound.
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

  /** `ndim` sizes of the global tensor, >= 0; for Muon >= 1. */
  const int64_t* shape;

  /** Mesh and placement. Default: NULL, which means replicated over all ranks. */
  const muonrt_layout_t* layout;

  /**
   * `ndim` sizes of this rank's shard, which are compared with those that
   * muonrt_layout_get_local_shape() returns. Default: NULL, which means not compared.
   */
  const int64_t* local_shape;

  /** The local shard, which steps overwrite; may be NULL if this rank holds no elements. */
  void* data;

  /**
   * The local gradient, in the layout of the gradient. It must be reduced over all replicas, unless
   * the layout has partial dimensions. Default: NULL, which means that it is bound later.
   */
  const void* grad;

  /** Dtype of `grad`: MUONRT_DTYPE_F32 or MUONRT_DTYPE_BF16. Default: 0, which means `dtype`. */
  muonrt_dtype_t grad_dtype;

  /** How bits that `dtype` cannot hold are kept. Default: MUONRT_MASTER_AUTO. */
  muonrt_master_kind_t master_kind;

  /**
   * MUONRT_MASTER_CALLER: f32 master weights of the local shard, initialized by the caller. Other
   * kinds require NULL. Default: NULL.
   */
  float* master;

  /**
   * Muon: the rank that orthogonalizes the parameter. It must hold a part of every matrix of the
   * parameter; for stacks see `owners`. Default: -1, which lets the plan choose, and which AdamW
   * and `assign` of muonrt_distributed_config_t require.
   */
  int32_t owner;

  /** How the dimensions form matrices. Default: MUONRT_VIEW_NONE. */
  muonrt_view_t view;

  /** Muon: `n_parts` parts of each matrix. Default: NULL, which means one part. */
  const muonrt_part_t* parts;

  /** Number of elements in `parts`. Default: 0. */
  int64_t n_parts;

  /** Factor of the group's learning rate, 0 to 1e30, for updates and decay. Default: 1. */
  double lr_factor;

  /** QK-clip, for Muon parameters that are one matrix. Default: NULL, which means none. */
  const muonrt_qk_clip_t* qk_clip;

  /**
   * Axis of NorMuon; the group must have NorMuon on. Default: MUONRT_NORMUON_OFF, which means the
   * axis of the group.
   */
  muonrt_normuon_axis_t normuon_axis;

  /** Parameters with lower numbers are exchanged first in a step. Default: 0. */
  int32_t priority;

  /**
   * 1: matrices are stored as inputs x outputs, as in Conv1D of GPT-2 and in JAX. Cannot be
   * combined with qk_clip. Default: 0, which means outputs x inputs.
   */
  int32_t transposed;

  /**
   * Layout of the gradient if it differs from `layout`: other placements or partial dimensions; the
   * owners then hold the state. `layout` must not have partial dimensions. Default: NULL, which
   * means `layout`.
   */
  const muonrt_layout_t* grad_layout;

  /**
   * How the dimensions form matrices, instead of `view`, which must then be MUONRT_VIEW_NONE. The
   * first `batch_dims` dimensions are a stack of matrices, the next `row_dims` (0 means 1) are the
   * stored rows, and the others, at least one, are the columns. 0 to 7. Default: 0 and 0, which
   * means `view`.
   */
  int32_t batch_dims, row_dims;

  /**
   * `ndim` strides in elements of `data` and `master`, and of `grad`, which are rejected if they
   * are not row-major and contiguous; a flat range uses only the first. Default: NULL, which means
   * not compared.
   */
  const int64_t *strides, *grad_strides;

  /**
   * Muon: `n_owners` ranks, one for each matrix of the stack: the rank that orthogonalizes it,
   * which must hold a part of it, or -1, which lets the plan choose. `owner` must then be -1.
   * Default: NULL, which means `owner`.
   */
  const int32_t* owners;

  /** Number of elements in `owners`: that of the stack's matrices. Default: 0. */
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
