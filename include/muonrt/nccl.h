/**
 * @file muonrt/nccl.h
 * Communicators for data in GPU memory: over NCCL, or staged through host memory.
 *
 * This header needs no NCCL header: an ncclComm_t is passed as `void*`. muonrt loads NCCL at run
 * time and searches for it in this order:
 *   1. NCCL functions that are visible to the whole program (linked in and exported, or loaded with
 *      RTLD_GLOBAL);
 *   2. libnccl.so.2 or libnccl.so, if the process has already loaded it;
 *   3. libnccl.so.2 or libnccl.so on the loader's search path.
 */
#ifndef MUONRT_NCCL_H
#define MUONRT_NCCL_H

#include "muonrt/base.h"
#include "muonrt/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Options of muonrt_comm_create_nccl(). Call muonrt_nccl_options_init() before you set fields. */
typedef struct muonrt_nccl_options {
  /** Size of the struct in bytes; set by muonrt_nccl_options_init(). */
  uint32_t struct_size;

  /** CUDA device index of this rank's GPU. Default: 0. */
  int32_t device_index;

  /**
   * Maximum number of thread blocks per NCCL operation: a power of two from 1 to 64, equal on all
   * ranks. muonrt's persistent kernels (MUONRT_SYMMETRIC_SM90) leave this number of SMs free for
   * NCCL. Default: 8.
   */
  int32_t max_ctas;

  /**
   * How muonrt uses `nccl_comm`; must be the same on all ranks. 0: muonrt splits `nccl_comm` and
   * uses only the new communicators. 1: muonrt uses `nccl_comm` itself and aborts it after an error
   * or a timeout. Default: 0.
   */
  int32_t borrow;

  /**
   * An ncclComm_t with the same ranks in the same order as the host communicator; see "Reusing an
   * ncclComm_t" below. Default: NULL, which makes muonrt create new NCCL communicators.
   */
  void* nccl_comm;

  /**
   * Name of the communicator in NCCL's own messages. muonrt copies the string. Default: NULL, which
   * means "muonrt".
   */
  const char* name;
} muonrt_nccl_options_t;

/**
 * Sets every field of `options` to its default.
 *
 * Call it through the macro muonrt_nccl_options_init(), which passes the size. muonrt/base.h
 * explains how programs and libraries of different versions work together.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] options  The struct to fill; NULL is accepted.
 * @param[in]  size     Size of the struct in bytes, as the program's headers declare it.
 */
MUONRT_API void muonrt_nccl_options_init_sized(muonrt_nccl_options_t* options, uint32_t size);
#define muonrt_nccl_options_init(options) \
  muonrt_nccl_options_init_sized((options), sizeof(muonrt_nccl_options_t))

/**
 * Reads the version of the NCCL library that muonrt uses.
 *
 * The call works without a GPU and without a CUDA driver.
 *
 * Threads: any. Collective: no.
 *
 * @param[out] version  The version as NCCL encodes it, for example 22809 for 2.28.9; 0 on error.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `version` is NULL;
 *   - MUONRT_ERROR_NOT_SUPPORTED: NCCL 2.19 or later was not found, or muonrt was built without
 *     CUDA.
 */
MUONRT_API muonrt_status_t muonrt_nccl_get_version(int32_t* version);

/**
 * Creates a communicator that exchanges GPU memory through NCCL.
 *
 * Use it for optimizers on MUONRT_DEVICE_CUDA when each rank has its own GPU. Each exchange is one
 * group of NCCL sends and receives. muonrt uses duplicates of `host` to report errors, to compare
 * settings between ranks, and to exchange data in host memory. `host` may be any communicator for
 * host memory: it may use MPI, threads, TCP, a shared folder or callbacks.
 *
 * @code
 * muonrt_nccl_options_t options;
 * muonrt_comm_t* comm;
 * muonrt_nccl_options_init(&options);
 * options.device_index = local_rank;
 * check(muonrt_comm_create_nccl(&comm, host, &options));
 * @endcode
 *
 * Threads: one at a time per communicator. Collective: over the ranks of `host`. Blocking; the
 * timeout of `host` limits every wait, except inside a blocking split (see below).
 *
 * @par Order of NCCL operations
 * NCCL requires that all ranks issue NCCL operations in the same order, and that all GPUs run them
 * in this order. While a step is running:
 *   - Do not use another NCCL communicator on the same GPU from another thread.
 *   - If collectives of another communicator are still running on a stream, make the step's stream
 *     wait for them with an event. With NCCL 2.26 or later you can set NCCL_LAUNCH_ORDER_IMPLICIT=1
 *     instead.
 *
 * @par NCCL environment variables
 * NCCL gives its environment variables precedence over `options`; the muonrt library itself reads
 * none. The ranks compare their options, but not their environment variables. If you set one of the
 * following variables, set it to the same value on all ranks, and set max_ctas to the resulting
 * number of thread blocks:
 *   - NCCL_MIN_CTAS, NCCL_MAX_CTAS, NCCL_CGA_CLUSTER_SIZE, NCCL_NCHANNELS_PER_NET_PEER;
 *   - NCCL_MIN_NCHANNELS, NCCL_MAX_NCHANNELS, NCCL_MIN_P2P_NCHANNELS, NCCL_MAX_P2P_NCHANNELS.
 *
 * @par Reusing an ncclComm_t
 * Set `nccl_comm` to reuse a communicator that the program already has. This communicator must be
 * initialized and must not have operations in flight.
 *   - With borrow = 0, muonrt splits `nccl_comm` in this call, and once more for each optimizer
 *     that you create with the new communicator. Keep `nccl_comm` alive until you have created the
 *     last of these optimizers.
 *   - By default, NCCL and PyTorch create blocking communicators. The split of a blocking
 *     `nccl_comm` has no timeout. If the split fails on one rank, that rank returns its error after
 *     at most 10 seconds. The other ranks remain blocked inside NCCL until the program aborts
 *     `nccl_comm`.
 *   - Leave NCCL_COMM_BLOCKING unset, because the value 1 makes every NCCL communicator blocking,
 *     including those that muonrt creates.
 *   - Do not pass a communicator that shares resources with its splits (splitShare = 1, or
 *     NCCL_COMM_SPLIT_SHARE_RESOURCES=1), because NCCL then aborts the communicator together with
 *     its splits. Pass NULL instead.
 *   - If this function fails, abort `nccl_comm`, because the split may still be in progress.
 *
 * @par Borrowing an ncclComm_t
 * With borrow = 1, muonrt uses `nccl_comm` itself:
 *   - Keep `nccl_comm` alive until all communicators and optimizers that borrow it have been
 *     destroyed.
 *   - An error in any of these communicators and optimizers makes all of them unusable.
 *   - Use `nccl_comm` for other work only while none of these communicators and optimizers has an
 *     operation in flight.
 *   - Create `nccl_comm` with ncclConfig_t::maxCTAs equal to max_ctas and
 *     ncclConfig_t::cgaClusterSize = 2, because muonrt's kernels for compute capability 9.0 leave
 *     pairs of SMs free. A larger cluster may not fit into a pair, and the exchange then waits
 *     until the matrix product is complete. With a cluster size of 1, NCCL may occupy one SM of a
 *     pair that a product needs.
 *
 * @par Errors and timeouts
 * After an error or a timeout, a helper thread calls ncclCommAbort() once. ncclCommAbort() waits
 * for all work that NCCL has enqueued. The abort therefore blocks while a stream for which the step
 * waits makes no progress.
 *   - Every muonrt call, including muonrt_comm_abort() and the destroy functions, waits at most
 *     three seconds for ncclCommAbort(). muonrt_optimizer_destroy() also waits for the optimizer's
 *     own streams, without a limit.
 *   - If the abort takes longer, the helper thread continues in the background until the stream
 *     makes progress. Until then, the ncclComm_t and the memory that the enqueued work uses remain
 *     allocated. Do not unload muonrt or NCCL before the helper thread has finished.
 *   - Do not use, abort or destroy a borrowed `nccl_comm` after an error, because the helper thread
 *     aborts it.
 *
 * @par Flow control
 * A rank can always have two NCCL operations in flight. A step enqueues a further operation only if
 * all operations in flight, including the new one, contain at most 256 messages in total. Otherwise
 * the step waits until earlier operations are complete.
 *
 * @param[out] comm     The new communicator; NULL on error. Destroy it with muonrt_comm_destroy().
 * @param[in]  host     A communicator for host memory; muonrt uses duplicates of it.
 * @param[in]  options  The options of this rank; NULL for the defaults.
 *
 * @return MUONRT_OK, or an error. If one rank fails, every rank returns an error, with a message
 * that names the affected ranks.
 *   - MUONRT_ERROR_NOT_SUPPORTED: a rank has no CUDA device, or no NCCL 2.19 or later.
 *   - MUONRT_ERROR_MISMATCH: the ranks have different versions of NCCL or muonrt, or different
 *     values of max_ctas or borrow, or only some of them pass an `nccl_comm`.
 *   - MUONRT_ERROR_INVALID_ARGUMENT: an option is out of range, a pointer is NULL, or `nccl_comm`
 *     has different ranks than `host` or uses a GPU other than `device_index`.
 *   - MUONRT_ERROR_DEVICE: a rank has no GPU with the index `device_index`, or CUDA has reported an
 *     error.
 *   - MUONRT_ERROR_OUT_OF_MEMORY: a rank has run out of memory.
 *   - MUONRT_ERROR_COMM: NCCL or `host` has failed on a rank.
 *   - MUONRT_ERROR_TIMEOUT: a rank did not take part before the timeout.
 *
 * If one rank fails, the others return without waiting for the timeout, with two exceptions: inside
 * a blocking split, and when `host` uses a muonrt_transport_t without `get_published_error`. A NULL
 * `host` is reported only on the rank that passes it. After a failure inside NCCL, `host` remains
 * usable.
 */
MUONRT_API muonrt_status_t muonrt_comm_create_nccl(muonrt_comm_t** comm, muonrt_comm_t* host,
                                                   const muonrt_nccl_options_t* options);

/**
 * Creates a communicator that moves GPU memory through pinned host memory.
 *
 * Messages are sent over `host`. Use this communicator for optimizers on MUONRT_DEVICE_CUDA when
 * NCCL is not an option: with an MPI library that has no GPU support, or when multiple ranks share
 * one GPU. This communicator is slower than NCCL. With more than one rank, the thread that calls
 * muonrt_optimizer_step() also waits in each exchange.
 *
 * If `host` was created by muonrt_comm_create_thread() or muonrt_comm_create_self(), muonrt copies
 * messages directly from GPU memory to GPU memory. If sender and receiver use different GPUs, the
 * CUDA driver performs the copy.
 *
 * Threads: one at a time per communicator. Collective: over the ranks of `host`. Blocking; the
 * timeout of `host` limits every wait.
 *
 * @param[out] comm          The new communicator; NULL on error. Destroy it with
 *                           muonrt_comm_destroy().
 * @param[in]  host          A communicator for host memory. muonrt duplicates it and uses the
 *                           duplicates.
 * @param[in]  device_index  CUDA device index of this rank's GPU.
 *
 * @return MUONRT_OK, or an error. If one rank fails, every rank returns an error, with a message
 * that names the rank that failed.
 *   - MUONRT_ERROR_NOT_SUPPORTED: a rank has no CUDA device.
 *   - MUONRT_ERROR_INVALID_ARGUMENT: `comm` is NULL.
 *   - MUONRT_ERROR_DEVICE: a rank has no GPU with the index `device_index`, or CUDA has reported an
 *     error.
 *   - MUONRT_ERROR_OUT_OF_MEMORY: a rank has run out of memory. If an allocation fails while that
 *     rank sets up the new communicator, the other ranks may return MUONRT_ERROR_COMM instead.
 *   - MUONRT_ERROR_COMM, _TIMEOUT: `host` has failed.
 *
 * A NULL `host` is reported only on the rank that passes it.
 */
MUONRT_API muonrt_status_t muonrt_comm_create_staged(muonrt_comm_t** comm, muonrt_comm_t* host,
                                                     int32_t device_index);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_NCCL_H */
