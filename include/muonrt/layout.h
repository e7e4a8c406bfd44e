/* muonrt/layout.h - how a global tensor lies over a mesh of ranks. */
#ifndef MUONRT_LAYOUT_H
#define MUONRT_LAYOUT_H

#include "muonrt/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Greatest number of tensor dimensions and of mesh dimensions. */
#define MUONRT_MAX_DIMS 8

/* An array of ranks, row-major, the last dimension fastest. Fill with muonrt_mesh_init first.
 * Everything it points to is read during the call it is passed to and not kept. */
typedef struct muonrt_mesh {
  uint32_t struct_size;
  int32_t ndim;             /* 1 .. MUONRT_MAX_DIMS */
  const int64_t* shape;     /* ndim sizes, each >= 1 */
  const char* const* names; /* ndim names, or NULL */
  const int32_t* ranks;     /* product(shape) distinct ranks, or NULL for 0, 1, 2, ... */
} muonrt_mesh_t;

/* What one mesh dimension does to a tensor. */
typedef int32_t muonrt_placement_kind_t;
enum muonrt_placement_kind {
  MUONRT_PLACEMENT_REPLICATE = 0,
  MUONRT_PLACEMENT_SHARD = 1,         /* ceil-sized chunks of tensor dimension `dim` */
  MUONRT_PLACEMENT_STRIDED_SHARD = 2, /* `split_factor` pieces, each chunked */
  MUONRT_PLACEMENT_PARTIAL = 3 /* the parameter is replicated, its gradient an addend: step sums
                                  them in f32, in the order of mesh coordinates, at the owner */
};
typedef struct muonrt_placement {
  muonrt_placement_kind_t kind;
  int32_t dim; /* tensor dimension, negative counts from the end; 0 where it means nothing */
  int64_t split_factor; /* STRIDED_SHARD: >= 1; else 0 or 1 */
} muonrt_placement_t;

/* How several cuts of one tensor dimension nest. */
typedef int32_t muonrt_reading_t;
enum muonrt_reading {
  MUONRT_READING_LITERAL = 0, /* left to right, what DTensor's distribute_tensor does */
  MUONRT_READING_ORDERED = 1  /* what FSDP2 does to a buffer that TP has cut already */
};

/* One cut: the given mesh dimensions, taken together as one, cut a tensor dimension. */
typedef struct muonrt_cut {
  const int32_t* mesh_dims; /* n_mesh_dims of them, the first one slowest */
  int32_t n_mesh_dims;      /* >= 1 */
  int32_t dim;              /* tensor dimension */
  int64_t split_factor;     /* >= 1; 1 is a plain chunk */
  int64_t unit;             /* >= 1: cut in blocks of so many rows */
} muonrt_cut_t;

/* What stands behind the cuts of a layout. It acts over `last_dims` of the mesh,
 * whose shards are counted row-major. */
typedef int32_t muonrt_layout_kind_t;
enum muonrt_layout_kind {
  MUONRT_LAYOUT_CUTS = 0,       /* nothing; `values` must be empty */
  MUONRT_LAYOUT_ROW_BOUNDS = 1, /* `values`: shards + 1 bounds along tensor dimension `last_dim` */
  MUONRT_LAYOUT_OWNER = 2,      /* `values`: one number, the shard that holds all; others nothing */
  MUONRT_LAYOUT_FLAT = 3 /* `values`: a pair begin, end for each shard: elements of the row-major
                            local tensor that the cuts leave (ZeRO, FSDP1, llm.c) */
};

/* A layout: either placements (one for each mesh dimension) or cuts (outermost first). Equal on
 * every rank: a tensor on a submesh, of which each rank has another one (a norm's weight on the
 * "dp" of "dp, tp"), is given over the whole mesh, replicated along its other dimensions. Fill with
 * muonrt_layout_init first. Everything it points to is read during the call and not kept. */
typedef struct muonrt_layout {
  uint32_t struct_size;
  muonrt_reading_t reading;  /* of the placements; LITERAL by default */
  const muonrt_mesh_t* mesh; /* NULL: all ranks of the communicator, one dimension "world" */
  const muonrt_placement_t* placements; /* mesh->ndim of them, or NULL */
  const int32_t* flat_dims; /* ORDERED: mesh dimensions that FSDP cuts as one, last; or NULL */
  int32_t n_flat_dims;
  int32_t n_cuts;
  const muonrt_cut_t* cuts;  /* used where `placements` is NULL; neither: replicated */
  muonrt_layout_kind_t kind; /* MUONRT_LAYOUT_CUTS */
  int32_t last_dim;
  const int32_t* last_dims; /* mesh dimensions; NULL: all that nothing else names */
  int32_t n_last_dims;
  int32_t reserved;
  const int64_t* values;
  int64_t n_values;
} muonrt_layout_t;

/* One maximal run of indices [begin, end). */
typedef struct muonrt_run {
  int64_t begin, end;
} muonrt_run_t;

/* Each sets every field to its default; see muonrt/base.h. */
MUONRT_API void muonrt_mesh_init_sized(muonrt_mesh_t* mesh, uint32_t size);
#define muonrt_mesh_init(mesh) muonrt_mesh_init_sized((mesh), sizeof(muonrt_mesh_t))
MUONRT_API void muonrt_layout_init_sized(muonrt_layout_t* layout, uint32_t size);
#define muonrt_layout_init(layout) muonrt_layout_init_sized((layout), sizeof(muonrt_layout_t))

/* local_shape <- the shape of `rank`'s shard of a tensor of `ndim` dimensions and global `shape`.
 * An empty shard has a 0 in the dimension that ran out. Flat ranges have no such shape: theirs is
 * {elements, 1, ..., 1}. A rank outside the mesh gets all zeros.
 * Errors: INVALID_ARGUMENT (null pointer, bad mesh, placement or shape; the message names it).
 * Threads: any. */
MUONRT_API muonrt_status_t muonrt_layout_get_local_shape(int64_t* local_shape,
                                                         const muonrt_layout_t* layout,
                                                         int32_t world, int32_t ndim,
                                                         const int64_t* shape, int32_t rank);

/* The global indices along tensor dimension `dim` that `rank` holds, as runs in local order.
 * @param runs    receives at most `capacity` runs; may be NULL if capacity is 0.
 * @param n_runs  receives how many there are.
 * Errors: as above; INVALID_ARGUMENT for flat ranges, which are no product of such lists. Threads:
 * any. */
MUONRT_API muonrt_status_t muonrt_layout_get_runs(muonrt_run_t* runs, int64_t capacity,
                                                  int64_t* n_runs, const muonrt_layout_t* layout,
                                                  int32_t world, int32_t ndim, const int64_t* shape,
                                                  int32_t rank, int32_t dim);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_LAYOUT_H */
