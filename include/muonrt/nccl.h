/* muonrt/nccl.h - communicators for parameters in GPU memory. No NCCL header is needed: an
 * ncclComm_t is passed as a pointer, and the library is looked for at run time. A copy that is in
 * the process already comes first: one whose functions all parts of the program see (linked into
 * it and exported, or loaded with RTLD_GLOBAL), then one that was loaded as libnccl.so.2. */
#ifndef MUONRT_NCCL_H
#define MUONRT_NCCL_H

#include "muonrt/base.h"
#include "muonrt/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct muonrt_nccl_options {
  uint32_t struct_size;
  int32_t device_index; /* this rank's GPU; 0 */
  int32_t max_ctas;     /* thread blocks of an operation at most, a power of two up to 64; 8. The
                           kernels of MUONRT_SYMMETRIC_SM90 leave as many SMs free. A borrowed
                           communicator keeps the limit it was made with; tell it here */
  int32_t borrow;       /* 1: use `nccl_comm` itself, which an error or a deadline then
                           aborts (else work could wait for a lost peer forever); 0: ones
                           split off it, which are muonrt's */
  void* nccl_comm;      /* an ncclComm_t over the same ranks in the same order (rules:
                           below); NULL: new ones are made */
  const char* name;     /* for NCCL's own messages; NULL: "muonrt" */
} muonrt_nccl_options_t;

/* Sets every field to its default; see muonrt/base.h. */
MUONRT_API void muonrt_nccl_options_init_sized(muonrt_nccl_options_t* options, uint32_t size);
#define muonrt_nccl_options_init(options) \
  muonrt_nccl_options_init_sized((options), sizeof(muonrt_nccl_options_t))

/* NCCL's version as NCCL tells it: 22809 for 2.28.9. No GPU or driver is needed.
 * Errors: NOT_SUPPORTED if there is no NCCL, or muonrt was built without CUDA. Threads: any. */
MUONRT_API muonrt_status_t muonrt_nccl_get_version(int32_t* version);

/* A communicator for optimizers on MUONRT_DEVICE_CUDA: grouped NCCL sends and receives. `host`, any
 * communicator of host memory (MPI, threads, TCP, folder, callbacks), brings the ranks together; a
 * duplicate of it carries errors, agreements and host memory. Collective over its ranks, blocking;
 * the timeout is that of `host`. While two operations of one rank and more than 256
 * messages are under way, a step waits for some to end before it enqueues the next.
 *
 * What NCCL enqueues must have one order on all ranks and on their GPUs: while a step runs, use no
 * other NCCL communicator on this GPU from another thread, and where collectives of another one are
 * still running on a stream, let the step's stream wait for them by an event (or, from NCCL 2.26
 * on, set NCCL_LAUNCH_ORDER_IMPLICIT=1).
 *
 * NCCL's environment comes before `options`, and muonrt reads no environment: where NCCL_MAX_CTAS,
 * NCCL_MIN_CTAS, NCCL_CGA_CLUSTER_SIZE, NCCL_NCHANNELS_PER_NET_PEER or
 * NCCL_{MIN,MAX}{,_P2P}_NCHANNELS are set, set them alike on all ranks and give max_ctas what they
 * come to. It is how many SMs the persistent products leave, and ranks compare the options alone.
 *
 * An `nccl_comm` is ready, with nothing outstanding on it. It is split here and again for each
 * optimizer made over the communicator, so it must be there then; borrowed, as long as they are.
 * - One that blocks, as NCCL's and PyTorch's do by default, knows no deadline while it is split: if
 *   that fails on one rank, this rank says why after ten seconds at most, and the others wait
 * inside NCCL until `nccl_comm` is aborted. NCCL_COMM_BLOCKING=1 makes all of them block, muonrt's
 * own too: leave it unset.
 * - One made with splitShare = 1, or under NCCL_COMM_SPLIT_SHARE_RESOURCES=1, is aborted together
 *   with what was split off it: pass NULL instead.
 * - After a failure of this function its split may still be under way: abort it.
 * - Communicators and optimizers that borrow it end together, by the first error of any. Use it
 *   elsewhere only while no work of theirs is under way. Give it their max_ctas as maxCTAs, and a
 *   cgaClusterSize of 2: products by muonrt's own kernels for sm_90a leave pairs of SMs free.
 *   Larger clusters may not fit there, and an exchange then waits for the products to end; single
 *   blocks may break pairs that the products want.
 *
 * An error or a deadline aborts what muonrt uses, once, by a thread of its own: ncclCommAbort waits
 * for what NCCL has enqueued, so that it does not return while a caller's stream hangs that a step
 * waits for. All calls, muonrt_comm_abort and destroying among them, wait three seconds for it at
 * most, and then leave the thread behind, with the ncclComm_t and the memory that its work uses,
 * until that stream goes on: neither this library nor NCCL may be unloaded before. A borrowed
 * `nccl_comm` is that thread's from the error on: neither destroy nor abort it, nor use it.
 *
 * @param options  NULL: the defaults.
 * Errors, on every rank: NOT_SUPPORTED where one has no CUDA device or no NCCL 2.19 or later;
 * MISMATCH where versions of NCCL or of muonrt, max_ctas, borrow or whether
 * there is an nccl_comm differ, naming the ranks; INVALID_ARGUMENT, OUT_OF_MEMORY, DEVICE and COMM,
 * naming the rank, whose failure the others do not wait out (over a muonrt_transport_t where it has
 * `published`; else, and inside a split that blocks, they do); TIMEOUT. After what fails in NCCL
 * `host` serves on. Only a null `host` is told on its rank alone. */
MUONRT_API muonrt_status_t muonrt_comm_create_nccl(muonrt_comm_t** comm, muonrt_comm_t* host,
                                                   const muonrt_nccl_options_t* options);

/* A communicator for optimizers on MUONRT_DEVICE_CUDA that copies through pinned host memory and
 * lets `host` carry the messages: for an MPI that knows nothing of GPUs, for several ranks on one
 * GPU. Over a `host` of muonrt_comm_create_thread or _self messages go from GPU memory to GPU
 * memory, within one GPU or by the driver between two. Slower than NCCL; the thread in
 * muonrt_optimizer_step waits inside each exchange.
 * Collective over the ranks of `host`, of which it takes duplicates.
 * Errors, on every rank: NOT_SUPPORTED where one has no CUDA device; INVALID_ARGUMENT, DEVICE,
 * OUT_OF_MEMORY, naming the rank (where the new communicator itself finds none, peers may get
 * COMM); COMM; TIMEOUT. Only a null `host` is told on its rank alone. */
MUONRT_API muonrt_status_t muonrt_comm_create_staged(muonrt_comm_t** comm, muonrt_comm_t* host,
                                                     int32_t device_index);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_NCCL_H */
