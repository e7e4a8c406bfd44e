/* muonrt/strategies.h - from how a trainer has its parallelism (sizes, process groups, a named
 * mesh, DTensor placements) to muonrt's meshes and placements. With none of them: one rank, or all
 * ranks that hold everything (a NULL layout). */
#ifndef MUONRT_STRATEGIES_H
#define MUONRT_STRATEGIES_H

#include "muonrt/base.h"
#include "muonrt/comm.h"
#include "muonrt/layout.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Memory behind a mesh that a function below makes; `mesh` points into it, so it stays where it is.
 * Fill with muonrt_mesh_storage_init first; `ranks` is the caller's, of at least as many numbers as
 * the communicator has ranks. */
typedef struct muonrt_mesh_storage {
  uint32_t struct_size;
  int32_t capacity; /* of ranks */
  int32_t* ranks;
  int64_t shape[MUONRT_MAX_DIMS];
  const char* names[MUONRT_MAX_DIMS];
  char text[256]; /* the names */
} muonrt_mesh_storage_t;

/* A trainer's strategies; 1 where one is not used. FSDP and TP (and HSDP's shards) shard; DP and CP
 * (and HSDP's replicas) replicate; the ranks of EP and PP hold different parameters. */
typedef struct muonrt_process_sizes {
  uint32_t struct_size;
  int32_t reserved;
  int64_t fsdp, tp, dp, ep, cp, pp; /* 1 */
  const char* order; /* outermost first; "pp,dp,fsdp,cp,ep,tp": tensor-parallel ranks are
                        neighbours */
} muonrt_process_sizes_t;

/* The same by process groups: for each strategy the ranks (of the communicator) of the group that
 * this rank is in, in the group's order; NULL and 0 where it is not used. MPI users get them from
 * MPI_Group_translate_ranks, users of PyTorch from get_process_group_ranks. */
typedef struct muonrt_process_groups {
  uint32_t struct_size;
  int32_t n_fsdp, n_tp, n_dp, n_ep, n_cp, n_pp;
  int32_t reserved;
  const int32_t *fsdp, *tp, *dp, *ep, *cp, *pp;
} muonrt_process_groups_t;

/* Each sets every field to its default; see muonrt/base.h. */
MUONRT_API void muonrt_mesh_storage_init_sized(muonrt_mesh_storage_t* storage, uint32_t size);
#define muonrt_mesh_storage_init(storage) \
  muonrt_mesh_storage_init_sized((storage), sizeof(muonrt_mesh_storage_t))
MUONRT_API void muonrt_process_sizes_init_sized(muonrt_process_sizes_t* sizes, uint32_t size);
#define muonrt_process_sizes_init(sizes) \
  muonrt_process_sizes_init_sized((sizes), sizeof(muonrt_process_sizes_t))
MUONRT_API void muonrt_process_groups_init_sized(muonrt_process_groups_t* groups, uint32_t size);
#define muonrt_process_groups_init(groups) \
  muonrt_process_groups_init_sized((groups), sizeof(muonrt_process_groups_t))

/* *mesh <- ranks 0, 1, 2, ... as an array of the sizes above 1, named pp, dp, fsdp, cp, ep, tp;
 * where none is above 1 (here, and in the functions below) one dimension of one rank, named "one".
 * Here and below `storage` has been filled by its _init function, and *mesh may hold anything: it
 * is written at the size that muonrt_mesh_t has in version 0.1 (*lifted alike). Local. Errors:
 * INVALID_ARGUMENT unless the sizes multiply to `world`. */
MUONRT_API muonrt_status_t muonrt_mesh_from_sizes(muonrt_mesh_t* mesh,
                                                  muonrt_mesh_storage_t* storage,
                                                  const muonrt_process_sizes_t* sizes,
                                                  int32_t world);

/* *mesh <- the array of which the groups are the lines, dimensions in the order pp, dp, fsdp, cp,
 * ep, tp. Collective over `comm`, every rank with its own groups; every rank gets the same mesh.
 * Errors, the same on every rank: INVALID_ARGUMENT where members do not agree on a group, or the
 * groups make no array of all ranks (one is missing, or two overlap: experts' groups that are cut
 * out of fsdp are a mesh of their own); OUT_OF_MEMORY. COMM, TIMEOUT, ABORTED: of `comm`. */
MUONRT_API muonrt_status_t muonrt_mesh_from_groups(muonrt_mesh_t* mesh,
                                                   muonrt_mesh_storage_t* storage,
                                                   muonrt_comm_t* comm,
                                                   const muonrt_process_groups_t* groups);

/* *out <- the part of `mesh` with the given index on the dimension called `name`, without that
 * dimension: the ranks that hold one pipeline stage. `world` as in the layout functions.
 * Local. Errors: INVALID_ARGUMENT. */
MUONRT_API muonrt_status_t muonrt_mesh_select(muonrt_mesh_t* out, muonrt_mesh_storage_t* storage,
                                              const muonrt_mesh_t* mesh, int32_t world,
                                              const char* name, int64_t index);

/* *lifted <- the layout over all ranks of a tensor that `layout` has on this rank's submesh, of
 * which each rank has another one: a norm's weight on the "dp" of "dp, tp", experts on "ep", on
 * "efsdp, ep". It lies so on every one of them: *mesh is the submesh and behind its dimensions one
 * named "lines", which replicates. The same on every rank. Where all have the same submesh nothing
 * is added. Row bounds, owners and flat ranges name their last_dims.
 * @param placements  receives MUONRT_MAX_DIMS; *lifted points to these, *mesh and what `layout`
 *                    points to.
 * @param submeshes   world x (ranks of the submesh): by rank, what each has as its mesh's ranks;
 *                    muonrt_comm_allgather collects them.
 * Local. Errors: INVALID_ARGUMENT, naming the rank, for a null pointer or mesh, a rank outside its
 * own submesh, submeshes that are neither equal nor disjoint. */
MUONRT_API muonrt_status_t muonrt_layout_lift(muonrt_layout_t* lifted, muonrt_mesh_t* mesh,
                                              muonrt_mesh_storage_t* storage,
                                              muonrt_placement_t* placements,
                                              const muonrt_layout_t* layout,
                                              const int32_t* submeshes, int32_t world);

/* placements[0 .. mesh->ndim) <- by the customary names of mesh dimensions: fsdp, dp_shard, zero,
 * hsdp_shard, dp_shard_cp, efsdp cut tensor dimension 0; tp cuts `tp_dim`, -1: replicates; ep cuts
 * dimension 0 where `expert` is 1, else replicates; dp, ddp, dp_replicate, hsdp_replicate, cp, sp
 * replicate, and so does every dimension of one rank.
 *
 * Where tp or ep, further right in the mesh, cuts dimension 0 too, that cut came first and FSDP2
 * cuts each rank's piece: its dimension is STRIDED_SHARD, `split_factor` the number of pieces, as
 * DTensor records it. On fsdp=2,tp=2 with tp_dim 0 that is SS(0,2),S(0): of 8 rows ranks 0 to 3
 * hold [0,2), [4,6), [2,4), [6,8). Read these placements as MUONRT_READING_ORDERED, which is what
 * FSDP2's buffers hold; LITERAL gives other rows for some uneven sizes (7 rows on fsdp=3,tp=2:
 * row 6 is rank 5's, LITERAL says rank 4's). Where FSDP2 shards over several mesh
 * dimensions as one, name them in `flat_dims`, too.
 *
 * Errors: INVALID_ARGUMENT for pp (select a stage first), and for other names. */
MUONRT_API muonrt_status_t muonrt_placements_from_names(muonrt_placement_t* placements,
                                                        const muonrt_mesh_t* mesh, int32_t world,
                                                        int32_t tp_dim, int32_t expert);

/* placements[0 .. *count) <- what a DTensor prints of its placements, "(Shard(dim=0),
 * Replicate())", or their short form "S(0),R". At most `capacity` are written; *count is how many
 * there are. Errors: INVALID_ARGUMENT, naming the piece. */
MUONRT_API muonrt_status_t muonrt_placements_parse(muonrt_placement_t* placements, int32_t capacity,
                                                   int32_t* count, const char* text);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_STRATEGIES_H */
