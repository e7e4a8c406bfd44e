/* muonrt/param.h - a parameter as a rank holds it: its parts, its master weights, QK-clip. */
#ifndef MUONRT_PARAM_H
#define MUONRT_PARAM_H

#include "muonrt/base.h"
#include "muonrt/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- settings ---- */
typedef int32_t muonrt_master_kind_t;
enum muonrt_master_kind {
  MUONRT_MASTER_AUTO = 0, /* bf16 parameters get f32 master weights, f32 ones none */
  MUONRT_MASTER_NONE = 1,
  MUONRT_MASTER_OWNED = 2,
  MUONRT_MASTER_CALLER = 3, /* `master` of the parameter */
  /* bf16: 16 more bits a weight, MUONRT_STATE_REMAINDER. The parameter is the f32 weight rounded,
     so the two do not simply stand side by side: its bits are, in uint32_t that wraps,
     ((uint32_t)param << 16) + (uint32_t)(int16_t)remainder */
  MUONRT_MASTER_REMAINDER = 4,
  /* bf16: none; rounded at random, without bias (options: seed) */
  MUONRT_MASTER_STOCHASTIC = 5
};
/* Which weight of an attention layer, with the values of muonrt/routing.h. Rows count by their
 * index in the whole weight; gamma(h) = threshold / logit of a query head above it, else 1. */
typedef int32_t muonrt_qk_kind_t;
enum muonrt_qk_kind {
  MUONRT_QK_NONE = 0,
  /* heads x head_dim rows, times gamma(h)^exponent */
  MUONRT_QK_QUERY = 1,
  /* kv_heads x head_dim rows, times the smallest gamma of its query heads ^ (1 - exponent) */
  MUONRT_QK_KEY = 2,
  /* heads x (nope + rope) rows; gamma is the smallest of the heads that share a key head; the rope
     rows take it whole */
  MUONRT_QK_MLA_QUERY = 3,
  /* kv_heads x (nope + v_dim) rows; values stay */
  MUONRT_QK_MLA_KEY_VALUE = 4,
  /* fused, group by group: its query heads, its key head, its value head */
  MUONRT_QK_QKV = 5
};

/* How a tensor's dimensions are read; never inferred. For more of them: batch_dims, row_dims. */
typedef int32_t muonrt_view_t;
enum muonrt_view {
  MUONRT_VIEW_NONE = 0,   /* as it is; Muon: a matrix */
  MUONRT_VIEW_STACK = 1,  /* experts x rows x cols: a matrix for each expert */
  MUONRT_VIEW_FLATTEN = 2 /* n0 x (n1 n2 ...): convolution weights */
};

/* A block of rows and columns of each of a parameter's matrices that is orthogonalized by itself,
 * with a scale from its own shape: the query rows of a fused QKV, a head, a half of gate_up. The
 * parts of a parameter tile its matrix. Rows are outputs, also where the parameter is `transposed`.
 * Fill with muonrt_part_init first. */
typedef struct muonrt_part {
  uint32_t struct_size;
  int32_t reserved;
  const char* name;         /* for messages; may be NULL */
  const muonrt_run_t* rows; /* ascending, disjoint; NULL: all rows */
  int64_t n_rows;
  const muonrt_run_t* cols; /* NULL: all columns */
  int64_t n_cols;
  double scale_factor;                /* multiplies the group's; 1; 0 .. 1e30 */
  double lr_factor;                   /* multiplies the parameter's; 1; 0 .. 1e30 */
  muonrt_normuon_axis_t normuon_axis; /* 0: as the parameter */
  int32_t reserved_2;
} muonrt_part_t;

/* QK-clip of one weight: its rows are multiplied, in the same rounding as the update, where a
 * head's largest logit is above the threshold; gamma = threshold / logit. Fill with
 * muonrt_qk_clip_init. */
typedef struct muonrt_qk_clip {
  uint32_t struct_size;
  muonrt_qk_kind_t kind; /* MUONRT_QK_NONE */
  int32_t layer;         /* number that the weights of a layer share, >= 0 */
  int32_t heads;         /* query heads of the layer */
  int32_t kv_heads;      /* divides heads; 0: as heads */
  int32_t head_dim;      /* Q, K, QKV; here and below: 0 in the other kinds */
  int32_t nope, rope;    /* MLA_Q; MLA_KV: nope */
  int32_t v_dim;         /* MLA_KV */
  int32_t n_select;      /* query heads that may be clipped, */
  const int32_t* select; /* by index; NULL: all */
  double threshold;      /* 100; > 0 */
  double exponent;       /* the queries' share; 0.5; 0 .. 1 */
} muonrt_qk_clip_t;

/* One parameter as this rank holds it. muonrt borrows the buffers until the optimizer is destroyed:
 * they stay the caller's, must not overlap one another, and are row-major and contiguous. */
typedef struct muonrt_param {
  uint32_t struct_size;
  int32_t group;                 /* index into the groups */
  const char* name;              /* unique, not empty, no control characters; what is not UTF-8 in
                                    it is U+FFFD in JSON */
  int32_t ndim;                  /* of the global tensor, 0 .. MUONRT_MAX_DIMS; Muon: see `view` */
  muonrt_dtype_t dtype;          /* MUONRT_DTYPE_F32 or _BF16 */
  const int64_t* shape;          /* GLOBAL shape, ndim sizes >= 0 (Muon: >= 1) */
  const muonrt_layout_t* layout; /* NULL: replicated over all ranks */
  const int64_t* local_shape;    /* what lies here, ndim sizes, compared with what
                                    muonrt_layout_get_local_shape says; NULL: not compared */
  void* data;                /* local shard; may be NULL where it is empty; overwritten by steps */
  const void* grad;          /* local gradient (of grad_layout), reduced over all replicas, or
                                this rank's addend where that layout has partial dimensions; NULL:
                                bound later */
  muonrt_dtype_t grad_dtype; /* MUONRT_DTYPE_F32 or _BF16; 0: as dtype */
  muonrt_master_kind_t master_kind; /* MUONRT_MASTER_AUTO */
  float* master;                    /* MASTER_CALLER: f32 local shard, initialized by the caller */
  int32_t owner;                    /* rank that orthogonalizes it, one that holds a part (of every
                                       matrix of a stack), or -1: chosen by the plan */
  muonrt_view_t view;               /* MUONRT_VIEW_NONE */
  const muonrt_part_t* parts;       /* Muon: n_parts parts; NULL: the matrix is one */
  int64_t n_parts;
  double lr_factor;                /* multiplies the group's, for update and decay; 1; 0 .. 1e30 */
  const muonrt_qk_clip_t* qk_clip; /* Muon matrices; read at creation alone; NULL: none */
  muonrt_normuon_axis_t normuon_axis; /* 0: as the group */
  int32_t priority;   /* parameters with lower numbers go first; equal ones as cost wants; 0 */
  int32_t transposed; /* 1: Muon's matrices are stored inputs x outputs (GPT-2's Conv1D, JAX,
                         gpt-oss). Scale rules, blocks, NorMuon and parts count outputs as rows all
                         the same; refused beside qk_clip. 0: outputs x inputs */
  const muonrt_layout_t* grad_layout; /* where the gradient lies, if not as the parameter: cut in
                                         another way, replicated, or with partial dimensions; then
                                         its state lies with owners; NULL: as `layout` */
  /* In place of `view`, where one of them is not 0: the first batch_dims dimensions are a stack of
     matrices (2: layers x experts x m x n), the next row_dims (0: 1) the rows as they are stored
     (2: heads x head_dim x out), the rest, at least one, the columns. Layouts cut any of them. */
  int32_t batch_dims, row_dims;
  /* What the caller believes of its buffers, in elements, ndim numbers each: of data (and master),
     and of grad. Compared with row-major and contiguous (INVALID_ARGUMENT); those of dimensions of
     one index here, and of empty shards, mean nothing. A flat range has one dimension here, the
     first. NULL: not compared. */
  const int64_t *strides, *grad_strides;
} muonrt_param_t;

/* Each sets every field to its default; see muonrt/base.h. */
MUONRT_API void muonrt_part_init_sized(muonrt_part_t* part, uint32_t size);
#define muonrt_part_init(part) muonrt_part_init_sized((part), sizeof(muonrt_part_t))
MUONRT_API void muonrt_qk_clip_init_sized(muonrt_qk_clip_t* clip, uint32_t size);
#define muonrt_qk_clip_init(clip) muonrt_qk_clip_init_sized((clip), sizeof(muonrt_qk_clip_t))
MUONRT_API void muonrt_param_init_sized(muonrt_param_t* param, uint32_t size);
#define muonrt_param_init(param) muonrt_param_init_sized((param), sizeof(muonrt_param_t))

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_PARAM_H */
