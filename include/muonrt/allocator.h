/**
 * @file muonrt/allocator.h
 * Custom allocators: functions that muonrt calls to allocate the memory of an optimizer, for
 * example from a framework's caching allocator.
 */
#ifndef MUONRT_ALLOCATOR_H
#define MUONRT_ALLOCATOR_H

#include "muonrt/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Functions that allocate and release memory on the optimizer's device.
 *
 * Call muonrt_allocator_init() first, set both functions, and set `allocator` of
 * muonrt_tuning_options_t to the address of the struct. muonrt_optimizer_create() copies the
 * struct.
 *
 * @par When muonrt calls the functions
 * muonrt_optimizer_create() calls `allocate` and `release`, and muonrt_optimizer_destroy() calls
 * `release`. A step calls neither function, because it allocates no device memory. The functions
 * run on the thread that has called muonrt_optimizer_create() or muonrt_optimizer_destroy(). On
 * CUDA, the optimizer's GPU is the current device of this thread during the calls. The functions
 * must not throw and must not call muonrt.
 *
 * @par Streams
 * On CUDA, `stream` is a cudaStream_t that belongs to muonrt. After `allocate` returns, muonrt
 * waits for this stream before it uses the memory, so `allocate` may be stream-ordered, like
 * cudaMallocAsync(). Before muonrt calls `release`, it waits for all streams of the optimizer, so
 * the memory can be reused immediately.
 *
 * @par Multiple GPUs in one process
 * If ranks in one process use different GPUs, each of these GPUs must have access to the memory of
 * the others, because data is copied directly from one GPU to another. If the memory comes from a
 * CUDA memory pool, grant the access with cudaMemPoolSetAccess().
 *
 * muonrt allocates pinned host memory and the memory of communicators (muonrt/nccl.h) without these
 * functions.
 */
typedef struct muonrt_allocator {
  /** Size of the struct in bytes; set by muonrt_allocator_init(). */
  uint32_t struct_size;

  /** Reserved; must be 0. */
  int32_t reserved;

  /**
   * First argument of both functions; must stay valid until the optimizer is destroyed. Default:
   * NULL.
   */
  void* state;

  /**
   * Allocates `bytes` (> 0) bytes and returns their address, which must be a multiple of 256. The
   * memory must be on the CUDA device with the index `device`. On the host, `device` is -1 and
   * `stream` is NULL. If the function returns NULL, muonrt_optimizer_create() returns
   * MUONRT_ERROR_OUT_OF_MEMORY on every rank. If the address is not a multiple of 256, or the
   * memory is not on the device, muonrt_optimizer_create() returns MUONRT_ERROR_INVALID_ARGUMENT.
   * Required.
   */
  void* (*allocate)(void* state, int64_t bytes, int32_t device, void* stream);

  /**
   * Releases memory that `allocate` has returned. `bytes` and `device` have the same values as in
   * the call to `allocate` that returned the memory. Required.
   */
  void (*release)(void* state, void* memory, int64_t bytes, int32_t device, void* stream);
} muonrt_allocator_t;

/**
 * Sets every field of `allocator` to its default.
 *
 * Call it through the macro muonrt_allocator_init(), which passes the size. muonrt/base.h explains
 * how programs and libraries of different versions work together.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] allocator  The struct to fill; NULL is accepted.
 * @param[in]  size       Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_allocator_init_sized(muonrt_allocator_t* allocator, uint32_t size);
#define muonrt_allocator_init(allocator) \
  muonrt_allocator_init_sized((allocator), sizeof(muonrt_allocator_t))

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_ALLOCATOR_H */
