/* muonrt/optimizer.h - Muon and AdamW over sharded parameters, one step for all of them. */
#ifndef MUONRT_OPTIMIZER_H
#define MUONRT_OPTIMIZER_H

#include "muonrt/allocator.h"
#include "muonrt/base.h"
#include "muonrt/comm.h"
#include "muonrt/distributed.h"
#include "muonrt/group.h"
#include "muonrt/layout.h"
#include "muonrt/param.h"

#ifdef __cplusplus
extern "C" {
#endif

/* An optimizer: parameters, their state, the step. Use it from one thread at a time; different
 * optimizers are independent of each other. */
typedef struct muonrt_optimizer muonrt_optimizer_t;

/* ---- settings ---- */
typedef int32_t muonrt_commit_t;
enum muonrt_commit { MUONRT_COMMIT_ATOMIC = 0, MUONRT_COMMIT_EAGER = 1 };
typedef int32_t muonrt_replica_mode_t;
enum muonrt_replica_mode {
  MUONRT_REPLICA_MODE_ONCE =
      0, /* a matrix that replicas hold is orthogonalized once for all of them */
  MUONRT_REPLICA_MODE_EACH = 1, /* once in every replica: more work, no traffic between replicas */
  MUONRT_REPLICA_MODE_AUTO =
      2 /* what the cost model calls cheaper; the printed plan compares them */
};
typedef int32_t muonrt_device_t;
enum muonrt_device { MUONRT_DEVICE_HOST = 0, MUONRT_DEVICE_CUDA = 1 };
/* CUDA: what computes symmetric products in half precision; equal on every rank. */
typedef int32_t muonrt_symmetric_t;
enum muonrt_symmetric {
  MUONRT_SYMMETRIC_DEFAULT = 0, /* SM90 on compute capability 9.0, else VENDOR; may change */
  MUONRT_SYMMETRIC_VENDOR = 1,  /* cuBLASLt: the whole product, then a mirrored copy */
  MUONRT_SYMMETRIC_SM80 = 2,    /* muonrt's own kernels, half the work; any GPU */
  MUONRT_SYMMETRIC_SM90 = 3     /* muonrt's own for compute capability 9.0 alone */
};
/* When ranks compare what replicas hold: gradients, weights and their state, by hashes in the
 * step's vote; a step in which they differ is MISMATCH, and nothing changes. */
typedef int32_t muonrt_replica_check_t;
enum muonrt_replica_check {
  /* In the first committed step and the first one after muonrt_optimizer_set_step or
     muonrt_optimizer_set_update_count; the gradient of a parameter that sits out when it first
     takes part; weights after muonrt_optimizer_reset_masters, too. */
  MUONRT_REPLICA_CHECK_FIRST = 0,
  MUONRT_REPLICA_CHECK_EVERY = 1, /* in every step: a pass over all that replicas hold, and a wait
                                     of the host */
  MUONRT_REPLICA_CHECK_OFF = 2
};
typedef int32_t muonrt_state_kind_t;
enum muonrt_state_kind {
  MUONRT_STATE_MOMENTUM = 0,
  MUONRT_STATE_VARIANCE = 1,
  MUONRT_STATE_MASTER = 2,
  MUONRT_STATE_REMAINDER = 3, /* uint16_t: the lower half of the f32 weight's bits; the upper one
                                 is not always the parameter's, see MUONRT_MASTER_REMAINDER */
  MUONRT_STATE_NORMUON = 4    /* second moments of all lines of all its matrices, in their order
                                 (expert by expert, part by part; matrices and parts of one line
                                 have none); not sharded: on ranks that own a matrix of it. Those
                                 of other owners' matrices are never written there: zero, or what
                                 a resume has put in */
};
typedef int32_t muonrt_format_t;
enum muonrt_format { MUONRT_FORMAT_TEXT = 0, MUONRT_FORMAT_JSON = 1 };

/* Equal on every rank (else MISMATCH), but for device_index, threads, timeout_ms, trace, poison,
 * graphs and allocator, and the state and functions of `distributed`
 * themselves. Fill with muonrt_optimizer_options_init first. */
typedef struct muonrt_optimizer_options {
  uint32_t struct_size;
  muonrt_device_t device; /* MUONRT_DEVICE_HOST */
  int32_t device_index;   /* CUDA only; 0 */
  int32_t threads; /* host: compute threads of this rank, 1 .. 256; 1. Does not change a bit. */
  muonrt_dtype_t transport_dtype; /* of what the exchanges carry; MUONRT_DTYPE_BF16 */
  muonrt_dtype_t iteration_dtype; /* of Newton-Schulz, F32, BF16 or F16; 0: F32 on the host; on CUDA
                              BF16, in the Gram form F16 */
  muonrt_commit_t commit;         /* MUONRT_COMMIT_ATOMIC */
  int32_t window;                 /* chunks in flight, 1 .. 64; 3 */
  int64_t chunk_bytes;   /* of whole matrices that one owner receives in a chunk, up to 2^60;
                            0: 64 MiB on the host, 256 MiB on CUDA */
  int64_t timeout_ms;    /* every wait of a step for other ranks ends after so long; 1 ..
                            31622400000 (366 days); 600000. While ranks compare and plan in
                            muonrt_optimizer_create they wait as long as muonrt_comm_set_timeout
                            has said */
  int32_t trace;         /* 1: keep the times of the last step's stages; 0 */
  int32_t portable_gemm; /* 1: plain loops in place of the GEMM library; 0 */
  int32_t poison;        /* 1: messages and scratch are filled with NaN before every step; 0 */
  muonrt_replica_mode_t replica_mode; /* MUONRT_REPLICA_MODE_ONCE; does not change a bit */
  const muonrt_distributed_config_t* distributed; /* read at creation alone; NULL: all built in */
  int64_t seed;     /* of MUONRT_MASTER_STOCHASTIC and of bf16 momentum; 0. Random bits follow from
                       seed, step, parameter and element, whatever the mesh. */
  double clip_norm; /* gradients are multiplied so that their norm over all parameters that have
                       one, after grad_scale_inv, is at most this, by an exact sum; 0: not clipped.
                       Not for gradients that are addends: their norm is not known before they are
                       summed */
  int64_t health_every; /* every so many steps one measures (muonrt/health.h); 0 .. 2^53; 0: none */
  int32_t max_peers; /* 0 .. 2^30: an owner that would return updates to more ranks than this sends
                        them to few, which forward them to the equal holders of other replicas, as
                        far as two levels can; parameters with partial gradients always
                        return in one exchange; 0: 64. Does not
                        change a bit. */
  int32_t graphs;    /* CUDA: 1: Newton-Schulz of a chunk is captured at its second run and
                        replayed as a CUDA graph from then on; 0. Does not change a bit. */
  /* What the model of MUONRT_REPLICA_MODE_AUTO knows of the machine, per rank; it decides nothing
     else, and no bit. 0: 5e10, 5e9 and 20e-6 on the host; 3e14, 5e10 and 15e-6 on CUDA. */
  double machine_flops;                 /* of products, per second; each 0 or >= 1e-30 */
  double machine_bytes;                 /* that a rank sends or receives, per second */
  double machine_message_seconds;       /* seconds of a message, beyond its bytes */
  muonrt_symmetric_t symmetric;         /* CUDA: MUONRT_SYMMETRIC_DEFAULT */
  muonrt_replica_check_t replica_check; /* MUONRT_REPLICA_CHECK_FIRST */
  const muonrt_allocator_t* allocator;  /* read at creation alone; NULL: muonrt's own */
} muonrt_optimizer_options_t;

/* Arguments of one step. */
typedef struct muonrt_step_args {
  uint32_t struct_size;
  int32_t reserved;
  double lr;                      /* learning rate, >= 0; no default: NaN until set; times the
                                     lr_factors it must be in the range of f32 */
  double grad_scale_inv;          /* multiplies every gradient; 1; > 0, in the range of f32 */
  const int64_t* inactive_params; /* parameters (indices) that sit out in this step, the same list
                                  on every rank; their state stays as it is */
  int64_t n_inactive_params;
  /* One f32 each in memory of the device, equal on every rank (the factor that the first two make
     is compared in the vote: MISMATCH), read when the step's work runs; NULL: absent. */
  const float* device_grad_scale_inv; /* multiplies every gradient, besides grad_scale_inv */
  const float* grad_multiplier;       /* the same, behind clip_norm: the caller's own clipping */
  const float* found_inf;             /* not 0 on any rank: the step is skipped on all */
  const float* qk_logits;  /* the largest logit of each query head on this rank, in memory
                              of the device: layer by layer, ascending; -inf for a head
                              that is not here; NULL: of none. The maximum over all ranks
                              decides; one that is not finite skips the step. */
  int64_t n_qk_logits;     /* heads of all layers that parameters name */
  void* stream;            /* CUDA: the cudaStream_t on which gradients are written; the step's work
                              waits for all that it holds now. NULL: the default stream. One that
                              is being captured is NOT_SUPPORTED. One whose work does not end for
                              timeout_ms ends the step with TIMEOUT: buffers must stay, and
                              muonrt_optimizer_destroy waits, until it has, for what was enqueued
                              behind it then still runs; on one rank alone that may be a commit.
                              Host: NULL. */
  const double* group_lrs; /* a rate for each group, in their order, each as `lr`, which is then
                              not read; NULL: `lr` for all */
  int32_t n_group_lrs;     /* their number, where it is not NULL; 0 */
  int32_t reserved_2;
} muonrt_step_args_t;

/* What a step did. Times in seconds, of this rank. */
typedef struct muonrt_step_report {
  uint32_t struct_size;
  int32_t skipped;        /* 1: voted down */
  int64_t step;           /* committed steps so far */
  int64_t orthogonalized; /* matrices, summed over ranks; `planned` in a committed step */
  int64_t planned;
  int64_t zero_matrices; /* all zero, those announced without a gradient too */
  /* skipped: lowest rank with a non-finite gradient; where none has one, the lowest that found
     something else (found_inf, a factor or a logit of QK-clip: all ranks do; an update that
     overflowed: its owner); else -1 */
  int32_t nonfinite_rank;
  int32_t has_health;      /* 1: this step measured; see muonrt_optimizer_get_health. What ends the
                             measuring of a step that is over is the next step's error */
  int64_t nonfinite_param; /* skipped: lowest parameter index it was found in there, else -1 */
  int64_t bytes_sent;      /* to other ranks in this step */
  double seconds;          /* whole call */
  double local_seconds;    /* packs, unpacks, commits */
  double gemm_seconds;     /* normalization and Newton-Schulz products */
  double exchange_seconds; /* sum over exchanges */
  double exposed_seconds;  /* whole call less the local passes and the products */
  double grad_norm;        /* of all gradients, where clip_norm is set; else 0 */
  int64_t clipped_heads;   /* by QK-clip; see muonrt_optimizer_get_clipped_heads */
  double enqueue_seconds;  /* until everything was enqueued; then the call only waits. Of a large
                              step: what `stream` held, too */
  /* 1: gradient and momentum of nonfinite_param are finite, and their direction in f32, but not in
     transport_dtype. */
  int32_t transport_overflow;
  int32_t reserved;
} muonrt_step_report_t;

/* Counts since creation, of this rank. */
typedef struct muonrt_counters {
  uint32_t struct_size;
  int32_t chunks_resident_peak; /* chunks in flight at once, at most the window */
  int64_t allocations;          /* calls of muonrt's device allocator */
  int64_t allocated_bytes;
  int64_t objects; /* streams, events and blocks of queues made */
  int64_t exchanges;
  int64_t bytes_sent;
  int64_t orthogonalized; /* matrices, by this rank */
} muonrt_counters_t;

/* Each sets every field to its default; see muonrt/base.h. */
MUONRT_API void muonrt_optimizer_options_init_sized(muonrt_optimizer_options_t* options,
                                                    uint32_t size);
#define muonrt_optimizer_options_init(options) \
  muonrt_optimizer_options_init_sized((options), sizeof(muonrt_optimizer_options_t))
MUONRT_API void muonrt_step_args_init_sized(muonrt_step_args_t* step, uint32_t size);
#define muonrt_step_args_init(step) muonrt_step_args_init_sized((step), sizeof(muonrt_step_args_t))
MUONRT_API void muonrt_step_report_init_sized(muonrt_step_report_t* report, uint32_t size);
#define muonrt_step_report_init(report) \
  muonrt_step_report_init_sized((report), sizeof(muonrt_step_report_t))
MUONRT_API void muonrt_counters_init_sized(muonrt_counters_t* counters, uint32_t size);
#define muonrt_counters_init(counters) \
  muonrt_counters_init_sized((counters), sizeof(muonrt_counters_t))

/* *optimizer <- a complete optimizer: everything is planned, compared between the ranks and taken
 * from memory here; state starts at zero, owned master weights from the parameters, which must have
 * been written by then (CUDA: or be under way on the default stream or one that it waits for; a
 * stream created as non-blocking must be synchronized first). Where masters are owned and a
 * blocking stream is under capture, which the default stream would wait for, creation is
 * NOT_SUPPORTED. Collective over `comm`; every rank passes the same parameters in the same order,
 * with its own buffers. `groups` and `params` are arrays; the first element's struct_size is the
 * stride of all. Blocking.
 *
 * Kept until muonrt_optimizer_destroy are the buffers that params name (data, master, and grad
 * until another one is bound), and of `distributed` and `allocator` the functions and their state.
 * All else may be freed or used again once the call has returned: `comm`, options, groups, params
 * and what these point to (names, shapes, strides, layouts, meshes, parts, lists).
 *
 * On a GPU a step is rehearsed, which takes about as long as one: it loads kernels and makes
 * tables; no gradient is read, no parameter written, nothing sent, no function of the caller's
 * called.
 *
 * Errors, the same on every rank and naming the rank, parameter, field and values:
 * INVALID_ARGUMENT, NOT_SUPPORTED, MISMATCH (ranks disagree), OUT_OF_MEMORY, TIMEOUT, COMM. Nothing
 * is changed or kept then, and *optimizer is NULL. After COMM and TIMEOUT `comm` may have ended;
 * after the others the call may be repeated. A null `comm` can only be reported to its own rank. */
MUONRT_API muonrt_status_t muonrt_optimizer_create(muonrt_optimizer_t** optimizer,
                                                   muonrt_comm_t* comm,
                                                   const muonrt_optimizer_options_t* options,
                                                   const muonrt_group_t* groups, int32_t n_groups,
                                                   const muonrt_param_t* params, int64_t n_params);

/* Gives back everything. Not collective; accepts NULL. It waits for what a step has enqueued, which
 * uses the caller's buffers, however long the stream that the step was given lasts. */
MUONRT_API void muonrt_optimizer_destroy(muonrt_optimizer_t* optimizer);

/* Rebinds the gradient of a parameter for the steps to come; NULL: bound later, or the parameter
 * sits out. Gradients may share memory with one another here (not at creation): they are only read.
 * Local, cheap. Errors: INVALID_ARGUMENT (index, alignment, memory that the device does not reach,
 * overlap with what a step writes: data, master weights or state of any parameter); the gradient
 * that was bound stays. */
MUONRT_API muonrt_status_t muonrt_optimizer_set_grad(muonrt_optimizer_t* optimizer, int64_t param,
                                                     const void* grad);

/* The same for all parameters, or for none where one is refused. Errors: as above; INVALID_ARGUMENT
 * unless `n` is their number. */
MUONRT_API muonrt_status_t muonrt_optimizer_set_grads(muonrt_optimizer_t* optimizer,
                                                      const void* const* grads, int64_t n);

/* Rebinds the memory of a parameter: the local shard, with the values that it had, or others of
 * which muonrt_optimizer_reset_masters is then told. Local, between steps. The next step compares
 * it with its master weights, and looks for infinities and NaN. Errors: INVALID_ARGUMENT (index,
 * null though elements lie here, alignment, memory that the device does not reach, overlap with
 * what a step reads or writes of another); the memory that was bound stays. */
MUONRT_API muonrt_status_t muonrt_optimizer_set_data(muonrt_optimizer_t* optimizer, int64_t param,
                                                     void* data);

/* Takes new weights: owned master weights become those of the parameters, remainders 0; every bit
 * follows from the parameter's own, on any mesh. To be called when the caller has written
 * parameters after the creation (a checkpoint, a reset adapter), which must have been written by
 * then as at creation; momentum, moments and counts of updates stay. The caller's own master
 * weights (MUONRT_MASTER_CALLER) stay: write those, too. Parameters without masters have nothing to
 * take, and may be listed. Local, blocking: every rank must name the same before the same step
 * (where replicas are compared, in the step's vote: MISMATCH). The next step looks for infinities
 * and NaN in them. Between steps.
 * @param params  indices, n of them; NULL: all, with n = 0.
 * Errors: INVALID_ARGUMENT (a bad index, which is named, n below 0); nothing is taken then. */
MUONRT_API muonrt_status_t muonrt_optimizer_reset_masters(muonrt_optimizer_t* optimizer,
                                                          const int64_t* params, int64_t n);

/* Changes a group's settings for the steps to come; every rank makes the same change before the
 * same step (compared in the step's vote). Errors: INVALID_ARGUMENT if a fixed field differs; of
 * `custom`, `restarts` and `n_restarts` nothing is read here: the lists of the creation stay.
 * Local. */
MUONRT_API muonrt_status_t muonrt_optimizer_set_group(muonrt_optimizer_t* optimizer, int32_t index,
                                                      const muonrt_group_t* group);

/* One step of every parameter, or of none. Collective; blocking on the host.
 * Returns MUONRT_OK; MUONRT_SKIPPED if any rank found a non-finite gradient (nothing has changed,
 * the step does not count; muonrt_get_last_error says why); else an error.
 * The same on every rank, with nothing changed and the optimizer usable: INVALID_ARGUMENT (a bad
 * argument or a missing gradient on some rank; in the first committed step, and the first of a
 * resume, a parameter that is not its master weight rounded, or an infinity or NaN in a parameter,
 * its master weights or its state), MISMATCH (step arguments differ, or replicas), CALLBACK (a
 * function of the caller's has failed on some rank), OUT_OF_MEMORY (on some rank there was none for
 * its arguments; a step takes no more, but over TCP for messages that come early: where there is
 * none, they wait; if others are awaited behind them for a second, the optimizer ends with COMM).
 * Finite gradients may still take a weight out of the range of its dtype, by a rate or decay that
 * is too large. That step is committed and returns MUONRT_OK; the next one is refused,
 * INVALID_ARGUMENT naming rank and parameter, until all weights and states are finite again.
 * After these the optimizer is unusable and says so: COMM, TIMEOUT, ABORTED, DEVICE (nothing
 * committed here), UNDECIDED, TORN. They come of faults, which ranks meet at different places: one
 * may return COMM, another TIMEOUT, a third UNDECIDED, one that had heard the vote by then OK;
 * muonrt/recover.h settles what the step is.
 * @param report  may be NULL; left as it was where an error is returned. */
MUONRT_API muonrt_status_t muonrt_optimizer_step(muonrt_optimizer_t* optimizer,
                                                 const muonrt_step_args_t* step,
                                                 muonrt_step_report_t* report);

/* *index <- the parameter called `name`. Errors: INVALID_ARGUMENT if there is none. */
MUONRT_API muonrt_status_t muonrt_optimizer_find_param(const muonrt_optimizer_t* optimizer,
                                                       const char* name, int64_t* index);

/* The heads that QK-clip acted on in the last committed step: `count` <- how many, and the first
 * `capacity` of them as (layers[i], heads[i]), ascending; both may be NULL with capacity 0.
 * Local. Errors: INVALID_ARGUMENT for a null pointer, a capacity below 0. */
MUONRT_API muonrt_status_t muonrt_optimizer_get_clipped_heads(const muonrt_optimizer_t* optimizer,
                                                              int32_t* layers, int32_t* heads,
                                                              int64_t capacity, int64_t* count);

/* Committed steps. Setting it resumes the step numbers, and AdamW's bias correction as if every
 * parameter had taken part in all of them; muonrt_optimizer_set_update_count (muonrt/state.h) gives
 * those that sat out their own count. 0 <= step <= 2^53. Local: every rank must set the same number
 * before the same step. Errors: INVALID_ARGUMENT. */
MUONRT_API muonrt_status_t muonrt_optimizer_get_step(const muonrt_optimizer_t* optimizer,
                                                     int64_t* step);
MUONRT_API muonrt_status_t muonrt_optimizer_set_step(muonrt_optimizer_t* optimizer, int64_t step);

/* The plan, for a person (MUONRT_FORMAT_TEXT) or as JSON: owners, chunks, bytes, memory, balance.
 * Buffers as in muonrt_get_build_info. Local. Errors: INVALID_ARGUMENT. */
MUONRT_API muonrt_status_t muonrt_optimizer_describe_plan(const muonrt_optimizer_t* optimizer,
                                                          muonrt_format_t format, char* buffer,
                                                          int64_t capacity, int64_t* needed);

/* The last step: the order of its stages (MUONRT_FORMAT_TEXT), or their times as a Chrome trace
 * (MUONRT_FORMAT_JSON; needs `trace` at creation). Buffers as in muonrt_get_build_info. Local.
 * Errors: INVALID_ARGUMENT; INVALID_STATE for times that were not kept. */
MUONRT_API muonrt_status_t muonrt_optimizer_get_trace(const muonrt_optimizer_t* optimizer,
                                                      muonrt_format_t format, char* buffer,
                                                      int64_t capacity, int64_t* needed);

/* *counters <- the counts. Local. Errors: INVALID_ARGUMENT (null pointer, wrong struct_size). */
MUONRT_API muonrt_status_t muonrt_optimizer_get_counters(const muonrt_optimizer_t* optimizer,
                                                         muonrt_counters_t* counters);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_OPTIMIZER_H */
