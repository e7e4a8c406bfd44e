/**
 * @file muonrt/strategies.h
 * Functions that make meshes and placements from the information that a trainer has: each rank's
 * submesh, the names of mesh dimensions, or the placements of a DTensor.
 *
 * If the tensor is replicated over all ranks, or if there is only one rank, pass NULL as the
 * layout.
 */
#ifndef MUONRT_STRATEGIES_H
#define MUONRT_STRATEGIES_H

#include "muonrt/base.h"
#include "muonrt/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Memory for the mesh that muonrt_layout_lift() creates. Call muonrt_mesh_storage_init() before you
 * set fields, then set `capacity` and `ranks`.
 *
 * The mesh points into this struct, so do not copy or move the struct while the mesh is in use.
 */
typedef struct muonrt_mesh_storage {
  /** Size of the struct in bytes; set by muonrt_mesh_storage_init(). */
  uint32_t struct_size;

  /** Number of elements in `ranks`; the size of the communicator always suffices. Default: 0. */
  int32_t capacity;

  /** The caller's array, to which muonrt writes the ranks of the mesh. Default: NULL. */
  int32_t* ranks;

  /** The sizes of the mesh; written by muonrt. */
  int64_t shape[MUONRT_MAX_DIMS];

  /** The names of the mesh dimensions, which point into `text`; written by muonrt. */
  const char* names[MUONRT_MAX_DIMS];

  /** The characters of the names, each with a terminating zero; written by muonrt. */
  char text[256];
} muonrt_mesh_storage_t;

/**
 * Sets every field of `storage` to its default.
 *
 * Call it through the macro muonrt_mesh_storage_init(), which passes the size. muonrt/base.h
 * explains how programs and libraries of different versions work together.
 *
 * Threads: any.
 *
 * @param[out] storage  The struct to fill; NULL is accepted.
 * @param[in]  size     Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_mesh_storage_init_sized(muonrt_mesh_storage_t* storage, uint32_t size);
#define muonrt_mesh_storage_init(storage) \
  muonrt_mesh_storage_init_sized((storage), sizeof(muonrt_mesh_storage_t))

/**
 * Makes a layout over all ranks from a layout over this rank's submesh.
 *
 * Use this function if a tensor is distributed over a submesh that differs between ranks. Examples
 * are a norm weight that is distributed only over the dimension "dp" of the mesh "dp, tp", and
 * experts that are distributed only over the dimension "ep" of the mesh "efsdp, ep". The tensor
 * must be distributed in the same way on every submesh.
 *
 * The new mesh has the dimensions of the submesh and one more dimension at the end, named
 * "submeshes", over which the tensor is replicated. The result is equal on all ranks. If all ranks
 * have the same submesh, the new mesh is that submesh.
 *
 * Threads: any. Collective: no; collect `submeshes` with muonrt_comm_allgather().
 *
 * @param[out] lifted      The layout. It holds pointers to `mesh`, to `placements` and to
 *                         everything that `layout` points to; all of these must outlive the layout.
 *                         The function writes only the fields that the struct has in version 0.1.
 * @param[out] mesh        The mesh of `lifted`; it points into `storage`. The function writes only
 *                         the fields that the struct has in version 0.1.
 * @param[in,out] storage  Memory for the mesh. Call muonrt_mesh_storage_init() on it first.
 * @param[out] placements  Array of MUONRT_MAX_DIMS elements; written if `layout` has placements.
 * @param[in]  layout      The layout over the submesh, with `mesh` set. If its kind is not
 *                         MUONRT_LAYOUT_CUTS, also set `last_dims`.
 * @param[in]  submeshes   `world` rows. Row r lists the ranks of rank r's submesh, in row-major
 *                         order.
 * @param[in]  world       Number of ranks of the communicator, >= 1.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: an argument is NULL or out of range; a rank is not in its own
 *     submesh; two submeshes are neither equal nor disjoint; the new mesh would have more than
 *     MUONRT_MAX_DIMS dimensions; or `storage` is too small. The message names the rank or field;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_layout_lift(muonrt_layout_t* lifted, muonrt_mesh_t* mesh,
                                              muonrt_mesh_storage_t* storage,
                                              muonrt_placement_t* placements,
                                              const muonrt_layout_t* layout,
                                              const int32_t* submeshes, int32_t world);

/**
 * Makes placements from the usual names of mesh dimensions.
 *
 * A mesh dimension of size 1 replicates the tensor. The effect of any other mesh dimension depends
 * on its name:
 *   - fsdp, dp_shard, zero, hsdp_shard, shard, dp_shard_cp, efsdp: shards tensor dimension 0;
 *   - tp: shards tensor dimension `tp_dim`, or replicates if `tp_dim` is -1;
 *   - ep: shards tensor dimension 0 if `expert` is 1, otherwise replicates;
 *   - dp, ddp, dp_replicate, hsdp_replicate, replicate, cp, sp: replicates.
 *
 * In these names, "." and "_" are equivalent. Ranks along "pp" (pipeline parallelism) hold
 * different parameters, so pass the mesh of a single pipeline stage.
 *
 * @par FSDP2 with TP or EP
 * FSDP2 shards the local tensors that result from TP and EP. If a dimension "tp" or "ep" is to the
 * right of an FSDP dimension in the mesh, and both shard tensor dimension 0, the placement on the
 * FSDP dimension is MUONRT_PLACEMENT_STRIDED_SHARD. Its `split_factor` is the product of the sizes
 * of these "tp" and "ep" dimensions, as in DTensor.
 *   - Example: on the mesh "fsdp" = 2, "tp" = 2, with `tp_dim` = 0, the ranks 0 to 3 hold the rows
 *     [0, 2), [4, 6), [2, 4) and [6, 8) of a tensor with 8 rows.
 *   - Set the layout's `reading` field to MUONRT_READING_ORDERED, which describes FSDP2's buffers.
 *   - If FSDP2 shards over multiple mesh dimensions as if they were one, list these dimensions in
 *     the layout's `flat_dims` field.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] placements  Array with one element for each dimension of `mesh`.
 * @param[in]  mesh        The mesh, with names for its dimensions.
 * @param[in]  world       Number of ranks of the communicator, >= 1.
 * @param[in]  tp_dim      The tensor dimension that "tp" shards, 0 to MUONRT_MAX_DIMS - 1, or -1.
 * @param[in]  expert      1 if dimension 0 of the tensor is the expert dimension, otherwise 0.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: an argument is NULL or out of range, or a mesh dimension of
 *     more than one rank is called "pp" or has an unknown name. The message suggests the nearest
 *     known name, and `placements` is unchanged;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_placements_from_names(muonrt_placement_t* placements,
                                                        const muonrt_mesh_t* mesh, int32_t world,
                                                        int32_t tp_dim, int32_t expert);

/**
 * Makes the placements that trainers usually choose for a parameter with this name and shape.
 *
 * The placements follow the rules of muonrt_placements_from_names(), with these differences:
 *   - "tp" shards the outputs of a weight whose name ends in q_proj, k_proj, v_proj, gate_proj,
 *     up_proj, embed_tokens, lm_head or a similar name, and the inputs of o_proj, down_proj and
 *     similar weights. "tp" replicates other weights, such as those of routers and norms.
 *   - If a stack has fewer experts than the number of ranks that would shard them, the FSDP mesh
 *     dimensions shard tensor dimension 1 of the stack instead.
 *   - The ranks of "ddp" hold partial gradients (MUONRT_PLACEMENT_PARTIAL).
 *
 * Set the layout's `reading` field to MUONRT_READING_ORDERED.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] placements  Array with one element for each dimension of `mesh`.
 * @param[in]  mesh        The mesh, with names for its dimensions.
 * @param[in]  world       Number of ranks of the communicator, >= 1.
 * @param[in]  name        The parameter's name. If it is NULL or "", "tp" shards the columns of
 *                         matrices.
 * @param[in]  ndim        Number of dimensions of the global tensor, 0 to MUONRT_MAX_DIMS.
 * @param[in]  shape       `ndim` sizes of the global tensor.
 * @param[in]  expert      1 if the tensor is a stack of experts, with `ndim` 3, otherwise 0.
 * @param[in]  transposed  1 if matrices are stored as inputs x outputs, 0 if they are stored as
 *                         outputs x inputs.
 *
 * @return The statuses of muonrt_placements_from_names().
 */
MUONRT_API muonrt_status_t muonrt_placements_for_tensor(muonrt_placement_t* placements,
                                                        const muonrt_mesh_t* mesh, int32_t world,
                                                        const char* name, int32_t ndim,
                                                        const int64_t* shape, int32_t expert,
                                                        int32_t transposed);

/**
 * Parses placements from the printed form of a DTensor.
 *
 * Examples of the accepted forms: "(Shard(dim=0), Replicate())", "[_StridedShard(dim=0, sf=2),
 * Partial(sum)]", and the short form "S(0),SS(0,2),R,P". The text does not specify the order in
 * which multiple placements shard the same dimension. Therefore, for FSDP2 over TP or EP, also set
 * the layout's `reading` field to MUONRT_READING_ORDERED.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] placements  Array of `capacity` elements, filled from the start. May be NULL if
 *                         `capacity` is 0.
 * @param[in]  capacity    Number of elements in `placements`, >= 0.
 * @param[out] count       Number of placements in the text, even if it exceeds `capacity`.
 * @param[in]  text        The text.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: a pointer is NULL, `capacity` is below 0, or a part of the
 *     text is not a known placement, such as a Partial other than a sum; the message quotes that
 *     part;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 */
MUONRT_API muonrt_status_t muonrt_placements_parse(muonrt_placement_t* placements, int32_t capacity,
                                                   int32_t* count, const char* text);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_STRATEGIES_H */
