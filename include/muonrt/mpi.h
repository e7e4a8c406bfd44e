/**
 * @file muonrt/mpi.h
 * Communicators that use MPI, for programs that do not include <mpi.h>.
 *
 * The function in this header is meant for language bindings and for programs that cannot include
 * <mpi.h>. In other C and C++ programs, call muonrt_comm_create_mpi() of muonrt/mpi_comm.h, so that
 * the compiler checks the type of the handle.
 *
 * The function is in the library muonrt_mpi, which links to MPI. The muonrt library itself does not
 * link to MPI. muonrt never calls MPI_Init, MPI_Finalize or MPI_Abort.
 */
#ifndef MUONRT_MPI_H
#define MUONRT_MPI_H

#include "muonrt/base.h"
#include "muonrt/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Creates a communicator over the ranks of an MPI communicator that is passed by address.
 *
 * muonrt duplicates the MPI communicator and sets the error handler of the duplicate to
 * MPI_ERRORS_RETURN. muonrt does not change the error handler of the original communicator, and
 * does not use the original after the call.
 *
 * Threads: any thread that may call MPI; see below. Collective: over the ranks of the MPI
 * communicator. Blocking, at most for `timeout_ms`.
 *
 * @par Threads
 *   - If MPI provides MPI_THREAD_MULTIPLE, the optimizer calls MPI from a muonrt thread.
 *   - Otherwise muonrt calls MPI only on threads that are inside a muonrt function. Call muonrt
 *     only from threads that may call MPI, and only while no other thread is inside MPI. With
 *     MPI_THREAD_FUNNELED, only the main thread may call MPI. If a different thread calls
 *     muonrt_comm_abort(), the peers receive the error only when this rank next calls a muonrt
 *     function.
 *
 * @par Lifetime
 * Destroy the communicator, and the optimizers that use it, before MPI_Finalize. After
 * MPI_Finalize, muonrt does not free the duplicate. It also never frees the duplicate after an
 * error, because MPI_Comm_free is collective.
 *
 * @par MPI error handlers
 *   - If an error occurs while MPI duplicates the communicator, MPI calls the error handler of the
 *     original communicator, which ends the job by default.
 *   - A peer may send a longer message than this rank expects. With Open MPI, the operation then
 *     returns MUONRT_ERROR_MISMATCH. MPICH instead calls the error handler of MPI_COMM_WORLD, which
 *     ends the job by default.
 *
 * @par After an error
 * After a timeout, or if only some ranks return an error, MPI may still be duplicating the
 * communicator on other ranks. Therefore, do not call this function or any collective MPI function
 * on the original communicator again.
 *
 * @param[out] comm              The new communicator; NULL on error. Destroy it with
 *                               muonrt_comm_destroy().
 * @param[in]  mpi_comm_address  Address of an intracommunicator (`const MPI_Comm*`).
 * @param[in]  timeout_ms        Timeout of this call in ms, 1 to 31622400000 (366 days). Later
 *                               operations have the timeout that muonrt_comm_set_timeout() sets.
 *
 * @return MUONRT_OK, or
 *   - MUONRT_ERROR_INVALID_ARGUMENT: a pointer is NULL, the handle is MPI_COMM_NULL or an
 *     intercommunicator, or `timeout_ms` is out of range;
 *   - MUONRT_ERROR_INVALID_STATE: MPI is not initialized, or MPI_Finalize has been called;
 *   - MUONRT_ERROR_TIMEOUT: a rank did not take part before the timeout;
 *   - MUONRT_ERROR_COMM: an MPI function failed;
 *   - MUONRT_ERROR_OUT_OF_MEMORY.
 *
 * Only the affected rank returns MUONRT_ERROR_INVALID_ARGUMENT or MUONRT_ERROR_INVALID_STATE.
 */
MUONRT_API muonrt_status_t muonrt_comm_create_mpi_address(muonrt_comm_t** comm,
                                                          const void* mpi_comm_address,
                                                          int64_t timeout_ms);

#ifdef __cplusplus
}
#endif

#endif /* MUONRT_MPI_H */
