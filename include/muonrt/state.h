/* muonrt/state.h - what an optimizer keeps between steps. */
#ifndef MUONRT_STATE_H
#define MUONRT_STATE_H

#include "muonrt/optimizer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where state lies. Momentum and moments of a parameter whose gradients are addends, or cut in
 * another way than it is, are kept by those who own its matrices or slices (see
 * muonrt_optimizer_state_pieces): what a rank keeps lies piece after piece in its view. NorMuon's
 * moments are with the owners of matrices. Master weights and remainders are always local. */
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

/* A piece of such a view. Pieces lie one after the other; those of LINES lie where they begin. */
typedef struct muonrt_state_piece {
  int64_t index; /* MATRICES, LINES: number of the matrix, expert by expert, part by part;
                    SLICES: -1 */
  int64_t begin; /* SLICES: its first local element; LINES: its first line; MATRICES: 0 */
  int64_t numel;
} muonrt_state_piece_t;

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

/* The pieces of that view where its place is not LOCAL; none where it is. Over all ranks they hold
 * each element, or line, once; where every replica orthogonalizes for itself (MUONRT_REPLICAS_EACH,
 * or AUTO that has chosen it) MATRICES and LINES are there once in every replica.
 * @param pieces    receives at most `capacity` of them; may be NULL if capacity is 0.
 * @param n_pieces  receives how many there are on this rank. Errors: as above. */
MUONRT_API muonrt_status_t muonrt_optimizer_state_pieces(muonrt_optimizer_t* optimizer,
                                                         int64_t param, muonrt_state_kind_t kind,
                                                         muonrt_state_piece_t* pieces,
                                                         int64_t capacity, int64_t* n_pieces);

/* Reads and sets the updates that a parameter has had: committed steps in which it took part
 * (those of Muon's parameters have no effect). AdamW corrects its moments by them, so they are
 * state: save them, and set them after muonrt_optimizer_set_step, which counts them as if no
 * parameter had ever sat out. A parameter that the caller starts anew (an adapter, a new expert),
 * with moments set to zero, has had 0. 0 <= updates <= 2^53. Local: every rank must set the same
 * before the same step (compared in the step's vote). Between steps, from one thread at a time.
 * Errors: INVALID_ARGUMENT; what was set stays. */
MUONRT_API muonrt_status_t muonrt_optimizer_get_updates(const muonrt_optimizer_t* optimizer,
                                                        int64_t param, int64_t* updates);
MUONRT_API muonrt_status_t muonrt_optimizer_set_updates(muonrt_optimizer_t* optimizer,
                                                        int64_t param, int64_t updates);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_STATE_H */
