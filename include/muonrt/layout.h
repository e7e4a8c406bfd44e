/**
 * @file muonrt/layout.h
 * Layouts: how a global tensor is distributed over a mesh of ranks.
 *
 * A layout has three parts:
 *   1. A mesh: an array of ranks with one or several dimensions. A rank outside the mesh holds no
 *      elements.
 *   2. Cuts. A cut shards one tensor dimension over one or several mesh dimensions. Describe the
 *      cuts either by placements as in DTensor, one for each mesh dimension, or by a list of
 *      muonrt_cut_t.
 *   3. Optionally, a last step that distributes the local tensor that remains after the cuts. The
 *      step divides this tensor at given row bounds or into flat ranges of elements, or assigns it
 *      to one rank; see muonrt_layout_kind_t.
 *
 * Each mesh dimension may be used once: by a cut, by the last step, or as a dimension over which
 * gradients are partial (MUONRT_PLACEMENT_PARTIAL). The tensor is replicated over the mesh
 * dimensions that are not used.
 *
 * Example: the rows of a matrix are sharded over "fsdp", and the shards are replicated over "dp".
 *
 * @code
 * const int64_t sizes[] = {2, 4};
 * const char* const names[] = {"dp", "fsdp"};
 * const muonrt_placement_t placements[] = {{MUONRT_PLACEMENT_REPLICATE, 0, 0},
 *                                          {MUONRT_PLACEMENT_SHARD, 0, 0}};
 * muonrt_mesh_t mesh;
 * muonrt_layout_t layout;
 * muonrt_mesh_init(&mesh);
 * mesh.ndim = 2;
 * mesh.shape = sizes;
 * mesh.names = names;
 * muonrt_layout_init(&layout);
 * layout.mesh = &mesh;
 * layout.placements = placements;
 * @endcode
 *
 * Example: TP has sharded the rows over "tp", and then FSDP2 has sharded each rank's rows over
 * "fsdp". With sizes {2, 2} and names {"fsdp", "tp"}, ranks 0 to 3 hold the rows [0, 2), [4, 6),
 * [2, 4) and [6, 8) of 8 rows:
 *
 * @code
 * const muonrt_placement_t strided[] = {{MUONRT_PLACEMENT_STRIDED_SHARD, 0, 2},
 *                                       {MUONRT_PLACEMENT_SHARD, 0, 0}};
 * layout.placements = strided;
 * layout.reading = MUONRT_READING_ORDERED;
 * @endcode
 */
#ifndef MUONRT_LAYOUT_H
#define MUONRT_LAYOUT_H

#include "muonrt/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Maximum number of dimensions of a tensor, and of a mesh. */
#define MUONRT_MAX_DIMS 8

/**
 * A mesh: a row-major array of ranks. Call muonrt_mesh_init() before you set fields.
 *
 * muonrt reads everything that the struct points to during the call and keeps no pointer.
 */
typedef struct muonrt_mesh {
  /** Size of the struct in bytes; set by muonrt_mesh_init(). */
  uint32_t struct_size;

  /** Number of dimensions, 1 to MUONRT_MAX_DIMS. Default: 0, which is rejected. */
  int32_t ndim;

  /**
   * `ndim` sizes, each >= 1; their product is at most the number of ranks of the communicator.
   * Default: NULL, which is rejected.
   */
  const int64_t* shape;

  /**
   * `ndim` names: distinct, not empty, without control characters. Default: NULL, which means "d0",
   * "d1" and so on.
   */
  const char* const* names;

  /**
   * The rank at each position of the array, in row-major order. No rank may occur twice. Default:
   * NULL, which means 0, 1, 2 and so on.
   */
  const int32_t* ranks;
} muonrt_mesh_t;

/** How a tensor is distributed along one mesh dimension. */
typedef int32_t muonrt_placement_kind_t;
enum muonrt_placement_kind {
  /** Every rank along the mesh dimension holds the same elements. */
  MUONRT_PLACEMENT_REPLICATE = 0,

  /**
   * Shards tensor dimension `dim`. Each shard holds ceil(indices / shards) indices; the last shards
   * may hold fewer or none.
   */
  MUONRT_PLACEMENT_SHARD = 1,

  /**
   * Divides tensor dimension `dim` into `split_factor` groups of ceil(indices / split_factor)
   * indices, and shards each group. A rank holds one shard of each group.
   */
  MUONRT_PLACEMENT_STRIDED_SHARD = 2,

  /**
   * The parameter is replicated, but its gradient is partial, which means not yet reduced: each
   * rank along the mesh dimension holds one term of the sum. The step adds these terms in f32, in
   * the order of the ranks' coordinates in the mesh.
   */
  MUONRT_PLACEMENT_PARTIAL = 3
};

/** A placement: how a tensor is distributed along one mesh dimension. */
typedef struct muonrt_placement {
  /** The kind of placement. */
  muonrt_placement_kind_t kind;

  /**
   * SHARD, STRIDED_SHARD: the tensor dimension, counted from 0. Negative numbers count from the
   * end, so -1 is the last dimension. Ignored for other kinds.
   */
  int32_t dim;

  /**
   * STRIDED_SHARD: number of groups, >= 1. As in DTensor, mesh dimensions to the right of this one
   * may shard the same tensor dimension first; the number of groups is the product of their sizes.
   * Other kinds: 0 or 1.
   */
  int64_t split_factor;
} muonrt_placement_t;

/**
 * The order in which several placements cut the same tensor dimension.
 *
 * For the buffers of FSDP2 over TP or EP, use ORDERED. With the split factors of DTensor, the two
 * readings give the same shards whenever the sizes divide evenly, and different shards for some
 * other sizes. The smallest such case has 7 rows on a mesh with "fsdp" = 3 and "tp" = 2. On "fsdp"
 * the placement of dimension 0 is STRIDED_SHARD (split_factor 2), and on "tp" it is SHARD. Row 6 is
 * then on rank 4 with LITERAL and on rank 5 with ORDERED.
 */
typedef int32_t muonrt_reading_t;
enum muonrt_reading {
  /** From the first to the last mesh dimension, as in DTensor's distribute_tensor(). */
  MUONRT_READING_LITERAL = 0,

  /**
   * In the order in which the program has sharded the tensor; for example, FSDP2 shards a tensor
   * that TP has already sharded. If `flat_dims` lists the dimensions of FSDP, all other mesh
   * dimensions are applied before them, from the first to the last. Otherwise the split factors
   * determine the order.
   */
  MUONRT_READING_ORDERED = 1
};

/**
 * A cut: shards one tensor dimension over one or several mesh dimensions.
 *
 * The shards are numbered row-major over `mesh_dims`. The cut divides the indices that remain after
 * earlier cuts, in three steps:
 *   1. Every `unit` consecutive indices form a block; the last block may be shorter.
 *   2. The blocks are divided into `split_factor` groups of ceil(blocks / split_factor) blocks.
 *   3. Each group is divided into one range per shard, of ceil(blocks of the group / shards)
 *      blocks. A shard holds its range of each group.
 */
typedef struct muonrt_cut {
  /** `n_mesh_dims` indices of mesh dimensions; the last one varies fastest. */
  const int32_t* mesh_dims;

  /** Number of mesh dimensions, >= 1. */
  int32_t n_mesh_dims;

  /** The tensor dimension, counted from 0; negative numbers count from the end. */
  int32_t dim;

  /**
   * Number of groups, >= 1; 1 means one contiguous range of blocks. For each tensor dimension, the
   * product of min(split_factor, size of the dimension) over all cuts of this dimension is at most
   * 2^24.
   */
  int64_t split_factor;

  /** Number of indices in a block, >= 1. With 1, a shard may begin at any index. */
  int64_t unit;
} muonrt_cut_t;

/**
 * The last step of a layout, after the cuts.
 *
 * This step divides the tensor over the mesh dimensions `last_dims`. Its shards are numbered
 * row-major over these dimensions.
 */
typedef int32_t muonrt_layout_kind_t;
enum muonrt_layout_kind {
  /** No last step; `values` must be empty. */
  MUONRT_LAYOUT_CUTS = 0,

  /**
   * Shard i holds the indices [values[i], values[i + 1]) of tensor dimension `last_dim`. `values`
   * has one more number than there are shards; the numbers ascend from 0 to the number of indices
   * that remain after the cuts, which must be the same on all ranks.
   */
  MUONRT_LAYOUT_ROW_BOUNDS = 1,

  /**
   * One shard holds everything that remains after the cuts, and the others hold nothing. `values`
   * has one number, the index of this shard.
   */
  MUONRT_LAYOUT_OWNER = 2,

  /**
   * The elements of the local tensor that remains after the cuts are numbered in row-major order,
   * and each shard holds a range of them, as in ZeRO, FSDP1 and llm.c. `values` has two numbers for
   * each shard, the begin and the end of its range. The ranges cover each element exactly once, in
   * any order, and may be empty. If the local tensors have different sizes after the cuts, `values`
   * has one range for each combination of indices in all mesh dimensions that shard the tensor, in
   * the row-major order of the mesh.
   */
  MUONRT_LAYOUT_FLAT = 3
};

/**
 * How a tensor is distributed. Call muonrt_layout_init() before you set fields.
 *
 * With the defaults the tensor is replicated over all ranks. A layout must be equal on all ranks.
 * If the program distributes the tensor over a submesh, which differs between ranks, convert the
 * layout with muonrt_layout_lift() (muonrt/strategies.h). You can also describe the tensor over the
 * whole mesh, as replicated over the dimensions that the submesh lacks. An example is the weight of
 * a norm that is sharded over the "dp" dimension of the mesh "dp, tp".
 *
 * muonrt reads everything that the struct points to during the call and keeps no pointer.
 */
typedef struct muonrt_layout {
  /** Size of the struct in bytes; set by muonrt_layout_init(). */
  uint32_t struct_size;

  /** The order in which `placements` cut. Default: MUONRT_READING_LITERAL. */
  muonrt_reading_t reading;

  /** The mesh. Default: NULL, which means all ranks, in one dimension named "world". */
  const muonrt_mesh_t* mesh;

  /** One placement for each mesh dimension, instead of `cuts`. Default: NULL. */
  const muonrt_placement_t* placements;

  /**
   * Only with MUONRT_READING_ORDERED: mesh dimensions that shard one tensor dimension together,
   * after all others, as FSDP does; their split factors are ignored. Default: NULL, which means
   * that the split factors determine the order.
   */
  const int32_t* flat_dims;

  /** Number of `flat_dims`. Default: 0. */
  int32_t n_flat_dims;

  /** Number of `cuts`, 0 to 64; 0 if `placements` is set. Default: 0. */
  int32_t n_cuts;

  /** The cuts, in the order in which they are applied. Default: NULL. */
  const muonrt_cut_t* cuts;

  /** The last step. Default: MUONRT_LAYOUT_CUTS, which means none. */
  muonrt_layout_kind_t kind;

  /**
   * ROW_BOUNDS: the tensor dimension, counted from 0; negative numbers count from the end. Default:
   * 0.
   */
  int32_t last_dim;

  /**
   * `n_last_dims` mesh dimensions of the last step. Default: NULL, which means all mesh dimensions
   * that no cut uses and that are not partial.
   */
  const int32_t* last_dims;

  /** Number of `last_dims`. Default: 0. */
  int32_t n_last_dims;

  /** Reserved; 0. */
  int32_t reserved;

  /** `n_values` numbers for the last step; see muonrt_layout_kind_t. Default: NULL. */
  const int64_t* values;

  /** Number of `values`. Default: 0. */
  int64_t n_values;
} muonrt_layout_t;

/** A range of consecutive indices or elements, [begin, end). */
typedef struct muonrt_run {
  /** The first index, and the index after the last one. */
  int64_t begin, end;
} muonrt_run_t;

/**
 * Sets every field of `mesh` to its default.
 *
 * Call it through the macro muonrt_mesh_init(), which passes the size. muonrt/base.h explains how
 * programs and libraries of different versions work together.
 *
 * Threads: any.
 *
 * @param[out] mesh  The struct to fill; NULL is accepted.
 * @param[in]  size  Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_mesh_init_sized(muonrt_mesh_t* mesh, uint32_t size);
#define muonrt_mesh_init(mesh) muonrt_mesh_init_sized((mesh), sizeof(muonrt_mesh_t))

/**
 * Sets every field of `layout` to its default.
 *
 * Call it through the macro muonrt_layout_init(), which passes the size.
 *
 * Threads: any.
 *
 * @param[out] layout  The struct to fill; NULL is accepted.
 * @param[in]  size    Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_layout_init_sized(muonrt_layout_t* layout, uint32_t size);
#define muonrt_layout_init(layout) muonrt_layout_init_sized((layout), sizeof(muonrt_layout_t))

/**
 * Gets the shape of a rank's shard.
 *
 * Special cases:
 *   - If a shard is empty, the size of the dimension in which it holds no index is 0, and the other
 *     sizes are the same as in a non-empty shard. For example, the shape may be {0, 2048}.
 *   - With MUONRT_LAYOUT_FLAT the shape is {elements, 1, ..., 1}.
 *   - If the mesh does not contain `rank`, all sizes are 0.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] local_shape  `ndim` sizes; may be NULL if `ndim` is 0.
 * @param[in]  layout       The layout; NULL for a tensor that is replicated over all ranks.
 * @param[in]  world        Number of ranks of the communicator, >= 1.
 * @param[in]  ndim         Number of dimensions of the tensor, 0 to MUONRT_MAX_DIMS.
 * @param[in]  shape        The global shape: `ndim` sizes, each >= 0, with less than 2^63 elements.
 * @param[in]  rank         The rank, 0 to `world` - 1.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: an argument is NULL or out of range, or the layout is not
 *     valid for this shape; the message names the argument or field;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_layout_get_local_shape(int64_t* local_shape,
                                                         const muonrt_layout_t* layout,
                                                         int32_t world, int32_t ndim,
                                                         const int64_t* shape, int32_t rank);

/**
 * Gets the global indices that a rank holds along one tensor dimension.
 *
 * A rank holds the elements whose index in every dimension is in the list of that dimension. The
 * list consists of ascending ranges with gaps between them. It is empty if the mesh does not
 * contain `rank`. To learn the number of ranges, call the function with capacity 0 first.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] runs      Array of `capacity` elements, filled from the start. May be NULL if
 *                       `capacity` is 0.
 * @param[in]  capacity  Number of elements in `runs`, >= 0.
 * @param[out] n_runs    Number of ranges, even if it exceeds `capacity`.
 * @param[in]  layout    The layout; NULL for a tensor that is replicated over all ranks.
 * @param[in]  world     Number of ranks of the communicator, >= 1.
 * @param[in]  ndim      Number of dimensions of the tensor, 1 to MUONRT_MAX_DIMS.
 * @param[in]  shape     The global shape: `ndim` sizes, each >= 0, with less than 2^63 elements.
 * @param[in]  rank      The rank, 0 to `world` - 1.
 * @param[in]  dim       The tensor dimension, 0 to `ndim` - 1.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: an argument is NULL or out of range, or the layout is not
 *     valid for this shape; or the layout's kind is MUONRT_LAYOUT_FLAT, which has no such lists
 *     because a flat range may begin or end within a row;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_layout_get_runs(muonrt_run_t* runs, int64_t capacity,
                                                  int64_t* n_runs, const muonrt_layout_t* layout,
                                                  int32_t world, int32_t ndim, const int64_t* shape,
                                                  int32_t rank, int32_t dim);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_LAYOUT_H */
