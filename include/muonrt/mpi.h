/* muonrt/mpi.h - communicators over MPI; in a library of its own, muonrt_mpi, the only one that
 * links MPI. muonrt never calls MPI_Init, MPI_Finalize or MPI_Abort. */
#ifndef MUONRT_MPI_H
#define MUONRT_MPI_H

#include "muonrt/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A communicator over the ranks of an MPI communicator. Collective over them, blocking.
 *
 * It talks over a duplicate of `*mpi_comm`, on which errors are returned; `*mpi_comm` is not used
 * afterwards, nor is its error handler changed. Destroy it, and the optimizers made from it, before
 * MPI_Finalize, or they leave the duplicate to the end of the process.
 *
 * MPICH has no error on the duplicate where a message is longer than its receiver expects (MISMATCH
 * under Open MPI): it goes to the handler of MPI_COMM_WORLD, which by default ends the job.
 *
 * After TIMEOUT, or an error on some ranks alone (what is checked before MPI is called: a null
 * pointer, a timeout out of range, COMM), MPI may still be duplicating `*mpi_comm` on the others,
 * which cannot be ended: do not call this function, or any collective one, on it again.
 *
 * Threads: under MPI_THREAD_MULTIPLE muonrt drives MPI from a thread of its own. Under any less it
 * calls MPI only on threads that are inside a muonrt function: call muonrt from where MPI may be
 * called (FUNNELED: the main thread), and never beside an MPI call of your own. muonrt_comm_abort
 * from another thread then reaches the peers with this rank's next call.
 *
 * @param mpi_comm    address of an MPI_Comm, an intra-communicator; a pointer, so that this header
 *                    needs no <mpi.h>.
 * @param timeout_ms  deadline of this call, 1 ms to 366 days; later waits have their own, see
 *                    muonrt_comm_set_timeout.
 * Errors: INVALID_STATE before MPI_Init and after MPI_Finalize; INVALID_ARGUMENT for a null
 * pointer, MPI_COMM_NULL, an inter-communicator, a timeout out of range; COMM; TIMEOUT. */
MUONRT_API muonrt_status_t muonrt_comm_create_mpi(muonrt_comm_t** comm, const void* mpi_comm,
                                                  int64_t timeout_ms);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_MPI_H */
