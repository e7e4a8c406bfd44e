/* muonrt/allocator.h - memory of a device from the caller. */
#ifndef MUONRT_ALLOCATOR_H
#define MUONRT_ALLOCATOR_H

#include "muonrt/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Memory of the optimizer's device from the caller, such as a framework's caching allocator, in
 * place of muonrt's own. The functions are called by the thread that is inside a function of
 * muonrt: allocate in muonrt_optimizer_create, release there and in muonrt_optimizer_destroy,
 * neither in a step. They do not throw, and do not call into muonrt. `device` is the index of the
 * CUDA device, which is the thread's current one; -1 on the host. `stream` is a cudaStream_t of
 * muonrt's, in whose order the memory may be used and is free again: allocators in the order of
 * streams need not wait. NULL on the host, where both hold at once. Where several GPUs of one
 * process are ranks, each must reach the others' memory: NCCL, and ranks that are threads, read it
 * in place, and pools want to be told so (cudaMemPoolSetAccess). Not asked for: what a communicator
 * takes (muonrt/nccl.h), pinned memory. Fill with muonrt_allocator_init first. */
typedef struct muonrt_allocator {
  uint32_t struct_size;
  int32_t reserved;
  void* state; /* handed to the functions as it is */
  /* `bytes` (> 0) of the device at a multiple of 256, or NULL: then the creation ends with
     MUONRT_ERROR_OUT_OF_MEMORY on every rank. */
  void* (*allocate)(void* state, int64_t bytes, int32_t device, void* stream);
  /* Takes back what allocate gave, with the same `bytes`. */
  void (*release)(void* state, void* memory, int64_t bytes, int32_t device, void* stream);
} muonrt_allocator_t;

/* Sets every field to its default; see muonrt/base.h. */
MUONRT_API void muonrt_allocator_init_sized(muonrt_allocator_t* allocator, uint32_t size);
#define muonrt_allocator_init(allocator) \
  muonrt_allocator_init_sized((allocator), sizeof(muonrt_allocator_t))

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_ALLOCATOR_H */
