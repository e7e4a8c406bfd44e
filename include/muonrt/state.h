/* muonrt/state.h - what an optimizer keeps between steps. */
#ifndef MUONRT_STATE_H
#define MUONRT_STATE_H

#include "muonrt/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where state lies. Momentum and moments of a parameter whose gradients are addends, or cut in
 * another way than it is, are kept by those who own its matrices or slices (see
 * muonrt_optimizer_get_state_shards): what a rank keeps lies piece after piece in its view.
 * NorMuon's moments are with the owners of matrices. Master weights and remainders are always
 * local. */
typedef int32_t muonrt_state_place_t;
enum muonrt_state_place {
  MUONRT_PLACE_LOCAL = 0,    /* with the local elements: the local shard's shape */
  MUONRT_PLACE_MATRICES = 1, /* Muon: whole matrices (or parts of them), each row-major */
  MUONRT_PLACE_SLICES = 2,   /* AdamW: stretches of the local elements */
  MUONRT_PLACE_LINES = 3     /* MUONRT_STATE_NORMUON: of all lines, those of this rank's matrices */
};

/* A borrowed view of a parameter's state on this rank; `place` says its shape. */
typedef struct muonrt_state_view {
  uint32_t struct_size;
  /* MUONRT_DTYPE_F32, or _BF16 (momentum_dtype); 0: uint16_t (STATE_REMAINDER) */
  muonrt_dtype_t dtype;
  void* data; /* NULL where the shard is empty, or this rank keeps nothing of it */
  int64_t numel;
  muonrt_state_place_t place; /* MUONRT_PLACE_LOCAL, ... */
  int32_t reserved;
} muonrt_state_view_t;

/* Sets every field to its default; see muonrt/base.h. */
MUONRT_API void muonrt_state_view_init_sized(muonrt_state_view_t* view, uint32_t size);
#define muonrt_state_view_init(view) \
  muonrt_state_view_init_sized((view), sizeof(muonrt_state_view_t))

/* A view of state: local, or what this rank keeps as an owner; see muonrt_state_place_t.
 * MUONRT_STATE_MOMENTUM (Muon's momentum, AdamW's first moment), _VARIANCE
 * (AdamW), _MASTER, _REMAINDER, _NORMUON. Valid until the optimizer is destroyed; write to it only
 * between steps (to resume). Errors: INVALID_ARGUMENT (index, kind), INVALID_STATE (this parameter
 * has no such state). */
MUONRT_API muonrt_status_t muonrt_optimizer_state(muonrt_optimizer_t* optimizer, int64_t param,
                                                  muonrt_state_kind_t kind,
                                                  muonrt_state_view_t* view);

/* A piece of state that lies on this rank. Of a tensor of `shape` (the parameter's, or a view of
 * it in which neighbouring dimensions are one) the elements of the product of index lists, one for
 * each dimension, and of these, counted row-major, those from `begin` to `end`: a shard, a flat
 * range, a slice, a matrix or part of one. NorMuon: lines [begin, end) of a tensor of all lines. */
typedef struct muonrt_state_shard {
  uint32_t struct_size;
  muonrt_state_kind_t kind;
  int64_t param;
  muonrt_dtype_t dtype; /* as in muonrt_state_view_t */
  int32_t ndim;
  const int64_t* shape;     /* ndim sizes */
  const muonrt_run_t* runs; /* the lists, one after the other */
  const int64_t* n_runs;    /* ndim lengths of them */
  int64_t begin, end;
  void* data; /* end - begin elements, in the device's memory */
  /* Of those, counted from `begin`, what this rank is to write where ranks that hold the same share
     a checkpoint's work; none where both are equal. */
  int64_t write_begin, write_end;
} muonrt_state_shard_t;

/* All state of this rank, parameter by parameter, none of it empty. Where a view's place is not
 * LOCAL, its extents hold each element, or line, once over all ranks; where every replica
 * orthogonalizes for itself (MUONRT_REPLICA_MODE_EACH, or AUTO that has chosen it) MATRICES and
 * LINES are there once in every replica.
 * @param extents    receives at most `capacity` of them; may be NULL if capacity is 0. What they
 *                   point to is valid until the next call, or until the optimizer is destroyed.
 * @param n_extents  receives how many there are. Local. Errors: INVALID_ARGUMENT. */
MUONRT_API muonrt_status_t muonrt_optimizer_get_state_shards(muonrt_optimizer_t* optimizer,
                                                             muonrt_state_shard_t* extents,
                                                             int64_t capacity, int64_t* n_extents);

/* How a checkpoint is saved. */
typedef struct muonrt_save_options {
  uint32_t struct_size;
  int32_t with_params; /* 1: the parameters too; 0: a hash of each, which a load compares */
  int64_t keep;        /* checkpoints that stay in the folder, this one among them; >= 1; 1 */
} muonrt_save_options_t;

/* How one is loaded. */
typedef struct muonrt_load_options {
  uint32_t struct_size;
  /* 1: parameters are left as they are, and must be those that were saved; 0: they are written
     where the checkpoint has them */
  int32_t without_params;
  /* 1: a parameter or kind of state that is absent starts anew (zeros, no updates, master weights
     from the parameter), what is surplus is left; muonrt_optimizer_get_load_notes says which. 0:
     both are refused */
  int32_t partial;
  int32_t reserved;
  const char* manifest; /* its name in the folder, of one that was kept; NULL: the newest */
} muonrt_load_options_t;

MUONRT_API void muonrt_state_shard_init_sized(muonrt_state_shard_t* extent, uint32_t size);
#define muonrt_state_shard_init(extent) \
  muonrt_state_shard_init_sized((extent), sizeof(muonrt_state_shard_t))
MUONRT_API void muonrt_save_options_init_sized(muonrt_save_options_t* options, uint32_t size);
#define muonrt_save_options_init(options) \
  muonrt_save_options_init_sized((options), sizeof(muonrt_save_options_t))
MUONRT_API void muonrt_load_options_init_sized(muonrt_load_options_t* options, uint32_t size);
#define muonrt_load_options_init(options) \
  muonrt_load_options_init_sized((options), sizeof(muonrt_load_options_t))

/* Saves a checkpoint: all state, counts, keys of random rounding. Each rank writes one file into
 * `folder`, which all ranks must share and which is made where there is none (its parent must be
 * there); rank 0 then writes manifest.json, and until that is there the folder holds the checkpoint
 * that it held before. Format: src/state/README.md. Collective over the optimizer's ranks, between
 * steps; blocking. timeout_ms bounds how long ranks wait for the slowest to write. CUDA: reads
 * behind what the default stream holds; synchronize a non-blocking stream that writes parameters
 * first. One save into a folder at a time, whoever makes it: another gets IO. What saves that
 * failed have left is removed.
 * @param options  may be NULL: every default.
 * Errors, the same on every rank and naming rank and file: IO; INVALID_ARGUMENT; MISMATCH (ranks
 * disagree on options or steps); NOT_SUPPORTED (the newest checkpoint there is of another format);
 * INVALID_STATE (moments that are not finite, second moments below 0, moments that are not zero
 * beside step 0, an optimizer that a step has ended); OUT_OF_MEMORY; DEVICE, COMM, TIMEOUT. The
 * optimizer stays as it was, and usable unless COMM or TIMEOUT. */
MUONRT_API muonrt_status_t muonrt_optimizer_save(muonrt_optimizer_t* optimizer, const char* folder,
                                                 const muonrt_save_options_t* options);

/* Takes host memory, so that muonrt_optimizer_save_begin with these options need not write: as many
 * bytes as this rank writes, on top of what the plan says. To be called behind the creation; it is
 * kept until the optimizer is destroyed.
 * @param bytes  receives how many; may be NULL. Local. Errors: INVALID_ARGUMENT, INVALID_STATE (a
 *               save is under way), OUT_OF_MEMORY. */
MUONRT_API muonrt_status_t muonrt_optimizer_save_reserve(muonrt_optimizer_t* optimizer,
                                                         const muonrt_save_options_t* options,
                                                         int64_t* bytes);

/* Begins a save: copies the state into that memory, and returns; a thread of this rank, which talks
 * to no other rank, writes it while steps go on, whose bits it does not change. Without the memory
 * it writes here. Until muonrt_optimizer_save_wait has returned the folder holds the checkpoint
 * that it held before, and no other save or load can begin (INVALID_STATE). What is destroyed with
 * the optimizer is not published. Collective. Errors: as muonrt_optimizer_save. */
MUONRT_API muonrt_status_t muonrt_optimizer_save_begin(muonrt_optimizer_t* optimizer,
                                                       const char* folder,
                                                       const muonrt_save_options_t* options);
/* Waits until every rank has written, and publishes. Collective, between steps. Errors: as
 * muonrt_optimizer_save, of what was begun; INVALID_STATE where nothing was. */
MUONRT_API muonrt_status_t muonrt_optimizer_save_wait(muonrt_optimizer_t* optimizer);

/* Goes on from a checkpoint, of whatever world, mesh, placement or owners: to the same bits as if
 * the steps before it had been made here. The optimizer must have the same parameters, by name, of
 * the same shapes and dtypes, with the same kinds of state in the same dtypes. Momentum of the
 * other convention is converted: m_heavy_ball = m_ema / (1 - momentum), of the momentum that was
 * saved. Other settings may differ: muonrt_optimizer_get_load_notes lists them. Master weights of
 * the caller's are written to. Seed and keys of random rounding are those of the checkpoint.
 * Collective, between steps; blocking. Each rank reads what it needs; every byte of it is checked
 * on every rank before anything is written.
 * @param options  may be NULL: every default.
 * Errors, the same on every rank: IO, CORRUPT (naming file and bytes), INVALID_ARGUMENT (another
 * model's state, with the list of what differs; parameters that are not those it was saved with),
 * NOT_SUPPORTED (another format), MISMATCH, INVALID_STATE, OUT_OF_MEMORY; nothing is changed then.
 * An error while state is written, which says so, ends the optimizer on every rank. */
MUONRT_API muonrt_status_t muonrt_optimizer_load(muonrt_optimizer_t* optimizer, const char* folder,
                                                 const muonrt_load_options_t* options);

/* What the last load found worth saying, a line each: settings that differ, momentum that was
 * converted, what was absent or surplus; "" if nothing. Buffers as in muonrt_get_build_info. Local.
 * Errors: INVALID_ARGUMENT. */
MUONRT_API muonrt_status_t muonrt_optimizer_get_load_notes(const muonrt_optimizer_t* optimizer,
                                                           char* buffer, int64_t capacity,
                                                           int64_t* needed);

/* Reads and sets the updates that a parameter has had: committed steps in which it took part
 * (those of Muon's parameters have no effect). AdamW corrects its moments by them, so they are
 * state: save them, and set them after muonrt_optimizer_set_step, which counts them as if no
 * parameter had ever sat out. A parameter that the caller starts anew (an adapter, a new expert),
 * with moments set to zero, has had 0. 0 <= updates <= 2^53. Local: every rank must set the same
 * before the same step (compared in the step's vote). Between steps, from one thread at a time.
 * Errors: INVALID_ARGUMENT; what was set stays. */
MUONRT_API muonrt_status_t muonrt_optimizer_get_update_count(const muonrt_optimizer_t* optimizer,
                                                             int64_t param, int64_t* updates);
MUONRT_API muonrt_status_t muonrt_optimizer_set_update_count(muonrt_optimizer_t* optimizer,
                                                             int64_t param, int64_t updates);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_STATE_H */
