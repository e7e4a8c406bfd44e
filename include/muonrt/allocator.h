/**
 * @file muonrt/allocator.h
 * Functions with which the caller allocates an optimizer's memory, for example from a framework's
 * caching allocator.
 */
#ifndef MUONRT_ALLOCATOR_H
#define MUONRT_ALLOCATOR_H

#include "muonrt/base.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * The functions that allocate and release the memory of the optimizer's device.
 *
 * Call muonrt_allocator_init() first, then set both functions. Pass the struct in
 * `allocator` of muonrt_tuning_options_t. muonrt copies it in muonrt_optimizer_create().
 *
 * @par When muonrt calls the functions
 * `allocate` in muonrt_optimizer_create(), `release` there and in muonrt_optimizer_destroy();
 * neither in a step. The calling thread is the one that is inside the muonrt function, and the GPU
 * is its current CUDA device. The functions must not throw and must not call muonrt.
 *
 * @par Streams
 * On CUDA, `stream` is a cudaStream_t of muonrt. Before muonrt uses new memory, it waits for this
 * stream, so `allocate` may be stream-ordered, such as cudaMallocAsync(). Before muonrt calls
 * `release`, it waits for all streams of the optimizer, so the memory can be reused at once.
 *
 * @par Several GPUs in one process
 * If ranks of one process use different GPUs, each of these GPUs must have access to the memory of
 * the others, because NCCL and ranks that are threads read it directly. For a memory pool, set this
 * with cudaMemPoolSetAccess().
 *
 * muonrt allocates pinned host memory and the memory of communicators (muonrt/nccl.h) itself.
 */
typedef struct muonrt_allocator {
  /** Size of the struct in bytes; set by muonrt_allocator_init(). */
  uint32_t struct_size;

  /** Reserved; 0. */
  int32_t reserved;

  /** The functions' first argument. Keep it until the optimizer is destroyed. Default: NULL. */
  void* state;

  /**
   * Returns `bytes` (> 0) bytes at an address that is a multiple of 256. `device` is the CUDA
   * device index, and the memory must be on this device; on the host, `device` is -1 and `stream`
   * is NULL. If it returns NULL, muonrt_optimizer_create() returns MUONRT_ERROR_OUT_OF_MEMORY on
   * every rank; other memory is rejected with MUONRT_ERROR_INVALID_ARGUMENT. Required.
   */
  void* (*allocate)(void* state, int64_t bytes, int32_t device, void* stream);

  /**
   * Releases memory that `allocate` has returned. `bytes` and `device` are those of the allocation.
   * Required.
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
