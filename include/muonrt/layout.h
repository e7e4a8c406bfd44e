/**
 * @file muonrt/layout.h
 * Layouts, which describe how a global tensor is distributed over a mesh of ranks.
 *
 * A layout has three parts:
 *   1. A mesh: an array of ranks with one or more dimensions. A rank outside the mesh holds no
 *      elements.
 *   2. Cuts. A cut shards one tensor dimension over one or more mesh dimensions. You can describe
 *      the cuts either with placements, one for each mesh dimension as in DTensor, or with a list
 *      of muonrt_cut_t.
 *   3. Optionally, a last step, which distributes the local tensor that remains after the cuts. The
 *      last step splits this tensor at given row bounds, splits it into flat ranges of elements, or
 *      assigns it to one rank; see muonrt_layout_kind_t.
 *
 * Each mesh dimension may be used only once: by a cut, by the last step, or as a dimension over
 * which gradients are partial (MUONRT_PLACEMENT_PARTIAL). The tensor is replicated over all mesh
 * dimensions that are not used.
 *
 * In the following example, the rows of a matrix are sharded over "fsdp", and the shards are
 * replicated over "dp":
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
 * In the second example, tensor parallelism (TP) has sharded the rows of a matrix over "tp", and
 * then FSDP2 has sharded each rank's rows over "fsdp". The mesh has the sizes {2, 2} and the names
 * {"fsdp", "tp"}. If the matrix has 8 rows, ranks 0 to 3 hold the rows [0, 2), [4, 6), [2, 4) and
 * [6, 8):
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
 * A call that receives the struct reads everything that the struct points to, and keeps no pointer.
 */
typedef struct muonrt_mesh {
  /** Size of the struct in bytes; set by muonrt_mesh_init(). */
  uint32_t struct_size;

  /** Number of dimensions, 1 to MUONRT_MAX_DIMS. Default: 0, which is rejected. */
  int32_t ndim;

  /**
   * The sizes of the `ndim` dimensions, each >= 1. Their product must be at most the number of
   * ranks of the communicator. Default: NULL, which is rejected.
   */
  const int64_t* shape;

  /**
   * The names of the `ndim` dimensions: distinct, non-empty, and without control characters.
   * Default: NULL, which means "d0", "d1" and so on.
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
   * The mesh dimension shards tensor dimension `dim`. Each shard holds ceil(indices / shards)
   * indices, but the last shards may hold fewer or none.
   */
  MUONRT_PLACEMENT_SHARD = 1,

  /**
   * Tensor dimension `dim` is divided into `split_factor` groups of ceil(indices / split_factor)
   * indices, and the mesh dimension shards each group. A rank holds one shard of each group.
   */
  MUONRT_PLACEMENT_STRIDED_SHARD = 2,

  /**
   * The parameter is replicated, but its gradient is partial, which means that it has not been
   * reduced: each rank along the mesh dimension holds one term of a sum. The optimizer's step adds
   * these terms in f32, in the order of the ranks' coordinates in the mesh.
   */
  MUONRT_PLACEMENT_PARTIAL = 3
};

/** A placement: how a tensor is distributed along one mesh dimension. */
typedef struct muonrt_placement {
  /** The kind of placement. */
  muonrt_placement_kind_t kind;

  /**
   * For SHARD and STRIDED_SHARD: the tensor dimension, counted from 0. Negative numbers count from
   * the end, so -1 is the last dimension. The other kinds ignore this field.
   */
  int32_t dim;

  /**
   * For STRIDED_SHARD: number of groups, >= 1. As in DTensor, it is the product of the sizes of all
   * mesh dimensions that are to the right of this one, but shard the same tensor dimension earlier.
   * For the other kinds: 0 or 1.
   */
  int64_t split_factor;
} muonrt_placement_t;

/**
 * The order in which multiple placements cut the same tensor dimension.
 *
 * Use ORDERED for tensors that FSDP2 has sharded after tensor or expert parallelism. With the split
 * factors of DTensor, LITERAL and ORDERED give the same shards if the sizes divide evenly;
 * otherwise the shards may differ. For example, a mesh has the sizes "fsdp" = 3 and "tp" = 2, and 7
 * rows are placed with STRIDED_SHARD (split_factor 2) on "fsdp" and with SHARD on "tp". Row 6 is
 * then on rank 4 with LITERAL, and on rank 5 with ORDERED.
 */
typedef int32_t muonrt_reading_t;
enum muonrt_reading {
  /**
   * The cuts are applied in the order of the mesh dimensions, from the first to the last, as in
   * DTensor's distribute_tensor().
   */
  MUONRT_READING_LITERAL = 0,

  /**
   * The cuts are applied in the order in which the program has sharded the tensor, for example
   * first over "tp" and then over "fsdp". If `flat_dims` lists the mesh dimensions of FSDP, the
   * cuts over all other mesh dimensions are applied first, in the order of the mesh dimensions.
   * Otherwise the split factors determine the order.
   */
  MUONRT_READING_ORDERED = 1
};

/**
 * A cut, which shards one tensor dimension over one or more mesh dimensions.
 *
 * The shards are numbered in row-major order over `mesh_dims`. In three steps, the cut divides the
 * indices that remain after earlier cuts:
 *   1. Every `unit` consecutive indices form a block; the last block may be shorter.
 *   2. The blocks are divided into `split_factor` groups of ceil(blocks / split_factor) blocks.
 *   3. Each group is divided into one range for each shard. A range has ceil(blocks of the group /
 *      shards) blocks, but the last ranges may be shorter. Each shard holds one range of each
 *      group.
 */
typedef struct muonrt_cut {
  /** `n_mesh_dims` indices of mesh dimensions; the last one varies fastest. */
  const int32_t* mesh_dims;

  /** Number of mesh dimensions, >= 1. */
  int32_t n_mesh_dims;

  /** The tensor dimension, counted from 0. Negative numbers count from the end. */
  int32_t dim;

  /**
   * Number of groups, >= 1. With 1, each shard is one contiguous range of blocks. For each tensor
   * dimension, the product of min(split_factor, size of the dimension) over all cuts of this
   * dimension must be at most 2^24.
   */
  int64_t split_factor;

  /** Number of indices in a block, >= 1. A shard may begin only at the first index of a block. */
  int64_t unit;
} muonrt_cut_t;

/**
 * The kind of the last step of a layout.
 *
 * After the cuts, each rank has a local tensor. The last step distributes this tensor over the mesh
 * dimensions `last_dims`. The resulting shards are numbered in row-major order over these
 * dimensions.
 */
typedef int32_t muonrt_layout_kind_t;
enum muonrt_layout_kind {
  /** There is no last step; `values` must be empty. */
  MUONRT_LAYOUT_CUTS = 0,

  /**
   * Shard i holds the indices [values[i], values[i + 1]) of tensor dimension `last_dim`. `values`
   * contains one more number than there are shards. The numbers ascend from 0 to the size of
   * dimension `last_dim` after the cuts. This size must be equal on all ranks.
   */
  MUONRT_LAYOUT_ROW_BOUNDS = 1,

  /**
   * One shard holds the whole local tensor, and the others hold nothing. `values` contains one
   * number, the index of this shard.
   */
  MUONRT_LAYOUT_OWNER = 2,

  /**
   * The elements of the local tensor are numbered in row-major order, and each shard holds a range
   * of them, as in ZeRO, FSDP1 and llm.c. `values` contains two numbers for each shard: the start
   * and the end of its range. The ranges may be empty and may have any order, but they must cover
   * each element exactly once. If the local tensors have different sizes, `values` contains one
   * range for each position in the mesh dimensions that shard the tensor, in row-major order.
   */
  MUONRT_LAYOUT_FLAT = 3
};

/**
 * How a tensor is distributed. Call muonrt_layout_init() before you set fields.
 *
 * With the defaults, the tensor is replicated over all ranks. A layout must be equal on all ranks,
 * so its mesh cannot be a submesh that differs between ranks. If the program distributes the tensor
 * over a submesh, either convert the layout with muonrt_layout_lift() (muonrt/strategies.h), or use
 * the whole mesh and describe the tensor as replicated over the mesh dimensions that the submesh
 * lacks. For example, if the weight of a norm is sharded over the submesh "dp" of a mesh with the
 * dimensions "dp" and "tp", describe it as replicated over "tp".
 *
 * A call that receives the struct reads everything that the struct points to, and keeps no pointer.
 */
typedef struct muonrt_layout {
  /** Size of the struct in bytes; set by muonrt_layout_init(). */
  uint32_t struct_size;

  /** The order in which `placements` cut. Default: MUONRT_READING_LITERAL. */
  muonrt_reading_t reading;

  /** The mesh. Default: NULL, which means a mesh of all ranks with one dimension named "world". */
  const muonrt_mesh_t* mesh;

  /** One placement for each mesh dimension, instead of `cuts`. Default: NULL. */
  const muonrt_placement_t* placements;

  /**
   * Only with MUONRT_READING_ORDERED: the mesh dimensions of FSDP. Together they form one cut,
   * which is applied after all others. Their split factors are ignored. Default: NULL, which means
   * that the split factors determine the order.
   */
  const int32_t* flat_dims;

  /** Number of elements in `flat_dims`. Default: 0. */
  int32_t n_flat_dims;

  /** Number of elements in `cuts`, 0 to 64; must be 0 if `placements` is set. Default: 0. */
  int32_t n_cuts;

  /** The cuts, in the order in which they are applied. Default: NULL. */
  const muonrt_cut_t* cuts;

  /**
   * Kind of the last step, which is applied after all cuts. Default: MUONRT_LAYOUT_CUTS, which
   * means no last step.
   */
  muonrt_layout_kind_t kind;

  /**
   * For ROW_BOUNDS: the tensor dimension, counted from 0. Negative numbers count from the end.
   * Default: 0.
   */
  int32_t last_dim;

  /**
   * The mesh dimensions of the last step. Default: NULL, which means all mesh dimensions that no
   * cut uses and that are not partial.
   */
  const int32_t* last_dims;

  /** Number of elements in `last_dims`. Default: 0. */
  int32_t n_last_dims;

  /** Reserved; 0. */
  int32_t reserved;

  /** The numbers that describe the last step; see muonrt_layout_kind_t. Default: NULL. */
  const int64_t* values;

  /** Number of elements in `values`. Default: 0. */
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
 *   - If the rank holds no index of a dimension, the size of this dimension is 0, but the other
 *     sizes are not affected. For example, the shape may be {0, 2048}.
 *   - With MUONRT_LAYOUT_FLAT, the shape is {elements, 1, ..., 1}.
 *   - If the mesh does not contain `rank`, all sizes are 0.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] local_shape  Receives `ndim` sizes; may be NULL if `ndim` is 0.
 * @param[in]  layout       The layout; NULL for a tensor that is replicated over all ranks.
 * @param[in]  world        Number of ranks of the communicator, >= 1.
 * @param[in]  ndim         Number of dimensions of the tensor, 0 to MUONRT_MAX_DIMS.
 * @param[in]  shape        The global shape: `ndim` sizes, each >= 0, with a product below 2^63.
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
 * The call returns these indices as a list of ascending ranges with gaps between them. The rank
 * holds an element if, in every dimension, the index of the element is in the list of this
 * dimension. All lists are empty if the mesh does not contain `rank`. To learn the number of
 * ranges, call the function with capacity 0 first.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] runs      Array of `capacity` elements, filled from the start. May be NULL if
 *                       `capacity` is 0.
 * @param[in]  capacity  Number of elements in `runs`, >= 0.
 * @param[out] n_runs    Number of ranges; may be larger than `capacity`.
 * @param[in]  layout    The layout; NULL for a tensor that is replicated over all ranks.
 * @param[in]  world     Number of ranks of the communicator, >= 1.
 * @param[in]  ndim      Number of dimensions of the tensor, 1 to MUONRT_MAX_DIMS.
 * @param[in]  shape     The global shape: `ndim` sizes, each >= 0, with a product below 2^63.
 * @param[in]  rank      The rank, 0 to `world` - 1.
 * @param[in]  dim       The tensor dimension, 0 to `ndim` - 1.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: an argument is NULL or out of range, the layout is not valid
 *     for this shape, or its kind is MUONRT_LAYOUT_FLAT. A flat layout has no such list, because a
 *     flat range can begin or end within a row;
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
