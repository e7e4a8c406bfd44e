/* muonrt/distributed.h - the caller's owners and exchanges in place of the built-in ones. */
#ifndef MUONRT_DISTRIBUTED_H
#define MUONRT_DISTRIBUTED_H

#include "muonrt/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What an assign function is told of a parameter; valid during the call. */
typedef struct muonrt_assign_info {
  uint32_t struct_size;
  int32_t ndim;
  const char* name;
  const int64_t* shape;   /* global, ndim sizes */
  const int32_t* holders; /* ranks that hold a part of it, ascending */
  int32_t n_holders;
  int32_t world; /* ranks of the communicator */
} muonrt_assign_info_t;

/* Three functions of the caller's in place of the built-in exchanges, for the Muon parameters. They
 * return 0, or an error code: then the call (creation or step) returns MUONRT_ERROR_CALLBACK on
 * every rank, with nothing changed. Fill with muonrt_distributed_config_init first.
 * assign:  called once for each Muon parameter at creation, in their order; *owner <- the rank that
 *     orthogonalizes it, the same on every rank. Needed by the other two, which allow any rank;
 *     else optional, and the rank must hold a part (of every matrix of a stack).
 * gather, redistribute: both or neither (then the built-in exchanges run). Called in every step for
 *     each Muon parameter, on every rank of the communicator, in the same order (the parameters'),
 *     never two at once on a rank. `local` is this rank's shard as it was registered, row-major and
 *     contiguous, NULL where it is empty; `full` the whole tensor, row-major, NULL on every rank
 * but the owner; both in the transport dtype. gather fills `full` on the owner from the shards
 * (where a mesh dimension replicates, from any replica); redistribute fills `local` on every rank
 * that holds a part, replicas too, from `full`. A function completes its communication even when
 * it returns an error, or its peers wait. Host: `stream` is NULL and the work is done on return;
 * called by a thread of muonrt, or by the one inside muonrt_optimizer_step where the communicator
 * wants its caller's thread (MPI below MPI_THREAD_MULTIPLE). CUDA: they enqueue on `stream`, a
 * cudaStream_t, and return. They do not throw, and do not call into the optimizer. */
typedef struct muonrt_distributed_config {
  uint32_t struct_size;
  int32_t
      async_parallelism; /* 1; 0: one parameter and one stage at a time, for debugging; same bits */
  int32_t prefetch_count; /* 1; 0 .. 63: gathers run ahead by so many chunks (with functions: by so
                             many parameters); replaces `window` of the options */
  int32_t reserved;
  void* state; /* handed to the functions as it is */
  int (*assign)(void* state, int64_t param, const muonrt_assign_info_t* facts, int32_t* owner);
  int (*gather)(void* state, int64_t param, int32_t owner, const void* local, void* full,
                void* stream);
  int (*redistribute)(void* state, int64_t param, int32_t owner, const void* full, void* local,
                      void* stream);
} muonrt_distributed_config_t;

/* Sets every field to its default; see muonrt/base.h. */
MUONRT_API void muonrt_distributed_config_init_sized(muonrt_distributed_config_t* config,
                                                     uint32_t size);
#define muonrt_distributed_config_init(config) \
  muonrt_distributed_config_init_sized((config), sizeof(muonrt_distributed_config_t))

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_DISTRIBUTED_H */
